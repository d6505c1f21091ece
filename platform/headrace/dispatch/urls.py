"""The queue's pages."""

from django.urls import path

from headrace.dispatch import views

app_name = "dispatch"

urlpatterns = [
    path("queue/", views.queue_page, name="queue"),
    path("queue/quota/", views.quota, name="quota"),
    path("queue/price/", views.price, name="price"),
    path("runs/<str:public_id>/priority/", views.priority, name="priority"),
    path("runs/<str:public_id>/queue.json", views.place, name="place"),
]

"""The runs table, saved views, and the pages that compare runs. Stands before the pages of one run."""

from typing import Any

from django.urls import path

from headrace.compare import views_compare, views_saved, views_table

urlpatterns: list[Any] = [
    path("runs/", views_table.runs_page, name="runs"),
    path("runs/table.csv", views_table.table_csv, name="runs-csv"),
    path("runs/fields.json", views_table.fields_json, name="fields"),
    path("runs/bulk/", views_table.bulk, name="bulk"),
    path("compare/", views_compare.compare_page, name="compare"),
    path("compare/series.json", views_compare.series_json, name="compare-series"),
    path("compare/data.json", views_compare.data_json, name="compare-data"),
    path("compare/search.json", views_compare.search_json, name="compare-search"),
    path("compare/series.csv", views_compare.series_csv, name="compare-series-csv"),
    path("compare/results.csv", views_compare.results_csv, name="compare-results-csv"),
    path("views/", views_saved.view_list, name="views"),
    path("views/save/", views_saved.save, name="view-save"),
    path("views/<str:public_id>/", views_saved.open_view, name="view"),
    path("views/<str:public_id>/rename/", views_saved.rename, name="view-rename"),
    path("views/<str:public_id>/delete/", views_saved.delete, name="view-delete"),
]

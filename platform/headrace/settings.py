"""Django settings, all from the environment. Every variable begins with HEADRACE_; a `_FILE` variant names a file that holds the value.

DATA_DIR       where the database and run folders live (default: ~/.local/share/headrace)
SECRET_KEY     at least 50 characters; needed unless DEBUG is on
DEBUG          1 for development only (default 0)
DATABASE_URL   sqlite:///path or postgres://user:password@host:port/name (default: SQLite in DATA_DIR)
VALKEY_URL     unix:///path.sock, redis:// or rediss:// (absent: one process only, nothing is dispatched)
BASE_URL PORT ALLOWED_HOSTS   where browsers reach the server (default: http://127.0.0.1:8700)
RAY_ADDRESS RAY_TOKEN_FILE    the cluster's dashboard and its token
ALERT_HOSTS    host:port,... that alerts may be sent to although they are not public (default: none)
MAX_RUNS       at most so many runs at once (default: as many as cores and GPUs hold)
"""

from pathlib import Path

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from headrace import environment
from headrace.logs import logging_config

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent.parent

DATA_DIR = Path(environment.read("DATA_DIR", "~/.local/share/headrace")).expanduser()
DEBUG = environment.read_bool("DEBUG", False)
SECRET_KEY = environment.secret_key(debug=DEBUG)

PORT = environment.read_int("PORT", 8700)
BASE_URL = environment.read("BASE_URL", f"http://127.0.0.1:{PORT}").rstrip("/")
HTTPS = BASE_URL.startswith("https://")
ALLOWED_HOSTS = environment.allowed_hosts(BASE_URL, debug=DEBUG)
CSRF_TRUSTED_ORIGINS = environment.trusted_origins(BASE_URL, ALLOWED_HOSTS, PORT)

RAY_ADDRESS = environment.read("RAY_ADDRESS", "http://127.0.0.1:8265").rstrip("/")
RAY_TOKEN_FILE = environment.read("RAY_TOKEN_FILE", "")
RUNS_DIR = DATA_DIR / "runs"
ALERT_HOSTS = environment.host_ports("ALERT_HOSTS")
# At most so many runs at once on this server's cluster; unset: as many as its cores and GPUs hold.
MAX_RUNS = environment.read_int("MAX_RUNS", 0) or None

INSTALLED_APPS = [
    "headrace.teams",
    "headrace.experiments",
    "headrace.dispatch",
    "headrace.telemetry",
    "headrace.artifacts",
    "headrace.compare",
    "headrace.alerts",
    "headrace.api",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic",
    "django.contrib.staticfiles",
    "channels",
    "csp",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "headrace.middleware.SecurityHeaders",
    "headrace.middleware.CompressedData",
    "csp.middleware.CSPMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "headrace.trouble.DatabaseTrouble",
]

ROOT_URLCONF = "headrace.urls"
ASGI_APPLICATION = "headrace.asgi.application"

FRONTEND = PACKAGE / "frontend" if (PACKAGE / "frontend").is_dir() else ROOT / "frontend"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FRONTEND / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
STATIC_URL = "/static/"
STATICFILES_DIRS = [FRONTEND / "static"] if (FRONTEND / "static").is_dir() else []
STATIC_ROOT = DATA_DIR / "static"
# Set by `headrace up` once it has collected the files; otherwise they are served from where they lie, and nothing needs to be collected.
STATIC_COLLECTED = environment.read_bool("STATIC_COLLECTED", False)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "headrace.static_files.DigestNames" if STATIC_COLLECTED else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
SERVESTATIC_USE_FINDERS = not STATIC_COLLECTED
SERVESTATIC_AUTOREFRESH = DEBUG
SERVESTATIC_ALLOW_ALL_ORIGINS = False

DATABASES = {"default": environment.database(DATA_DIR)}
# Counters of failed sign-ins and of requests live here: more of them than an attacker can push out.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 50_000}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIGRATION_MODULES = {
    app: f"migrations.{app}" for app in ("teams", "experiments", "dispatch", "telemetry", "artifacts", "compare", "alerts", "api")
}

AUTH_USER_MODEL = "teams.User"
AUTHENTICATION_BACKENDS = ["headrace.teams.backends.LimitedLogin"]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.ScryptPasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator", "OPTIONS": {"user_attributes": ("email", "name")}},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

# __Host- binds a cookie to this host and to https; a browser refuses such a cookie over plain http.
SESSION_COOKIE_NAME = "__Host-headrace-session" if HTTPS else "headrace-session"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = HTTPS
SESSION_SAVE_EVERY_REQUEST = False
CSRF_COOKIE_NAME = "__Host-headrace-csrf" if HTTPS else "headrace-csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
# Supervisor, reconciler and the drivers of this machine speak to the server on loopback, where nothing ends TLS.
SECURE_REDIRECT_EXEMPT = [r"^healthz/", r"^api/v1/attempts/"]
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS and environment.read_bool("BEHIND_PROXY", False) else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "worker-src": [SELF, "blob:"],
        "connect-src": [SELF, *environment.websocket_origins(BASE_URL)],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}

# Bodies of ingest are bounded by the API itself (workers.contract.events.MAX_BATCH_BYTES plus what JSON adds).
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024

VALKEY_URL = environment.read("VALKEY_URL", "")
CHANNEL_LAYERS = {"default": environment.channel_layer(VALKEY_URL)}

CELERY_BROKER_URL = environment.celery_broker(VALKEY_URL)
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ALWAYS_EAGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# The worker logs as everything else does: JSON lines without secrets.
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_BROKER_TRANSPORT_OPTIONS = environment.celery_transport_options(VALKEY_URL)

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = logging_config(environment.read("LOG_LEVEL", "INFO"))

SILENCED_SYSTEM_CHECKS: list[str] = []
if not HTTPS:
    # Plain http on loopback is how a laptop runs it; headrace.checks refuses plain http on any other address.
    SILENCED_SYSTEM_CHECKS += ["security.W004", "security.W008", "security.W012", "security.W016"]

if DEBUG and HTTPS:
    raise ImproperlyConfigured("HEADRACE_DEBUG: must be off where BASE_URL is https -> unset HEADRACE_DEBUG")

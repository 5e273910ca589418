"""Settings: those that any project has, and at the end the lines that are about fencepost."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit


def database(url: str) -> dict[str, object]:
    """What dj-database-url does, in small."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host", parts.hostname or ""),
        "PORT": query.get("port", str(parts.port or "")),
    }


SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it out")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database(os.environ["DATABASE_URL"])}

INSTALLED_APPS = [
    "shop",
    "fencepost.integrations.django",
]
FENCEPOST_APP = "shop.jobs:app"

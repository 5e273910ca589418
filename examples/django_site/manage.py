#!/usr/bin/env python
"""
A Django project whose orders enqueue jobs in their own transaction.

    cd examples/django_site
    export DATABASE_URL=postgresql://localhost/shop
    python manage.py migrate              # the project's tables and fencepost's
    python manage.py runserver &
    python manage.py fencepost worker     # --processes 4, --workers 16, …

    curl -s localhost:8000/orders -H 'Content-Type: application/json' -d '{"email": "ada@example.org", "cents": 1200}'
    curl -s localhost:8000/orders/1
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
    execute_from_command_line(sys.argv)

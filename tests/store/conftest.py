import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from history_places import place, postgresql, server_url, sqlite, url  # noqa: F401 (fixtures)

"""`ling-operator run`: bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from kubernetes.aio.config import ConfigException

from ling_api.errors import BadInput, LingError
from ling_operator import run, settings


def main() -> None:
    """The command `ling-operator`."""
    try:
        chosen = settings.read(sys.argv[1:], os.environ)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        for chatty in ("kopf", "aiohttp"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        logging.getLogger("kubernetes.aio.config").setLevel(logging.ERROR)  # what it warns of is our one line below
        try:
            asyncio.run(run.run(chosen))
        except ConfigException as error:
            raise BadInput(f"no API server is configured: {error}; set KUBECONFIG, or run in a pod") from error
    except LingError as error:
        sys.stderr.write(f"ling-operator: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

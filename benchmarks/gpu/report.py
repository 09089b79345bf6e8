"""What was measured so far: written to disk at once, row by row, so that a run that is cut off loses nothing."""

from __future__ import annotations

import json
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .asking import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(slots=True)
class Report:
    """`rows`: name, value, goal ("" = none), whether it was met (None = there is no goal)."""

    path: Path
    machine: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def row(self, name: str, value: Any, goal: str = "", ok: bool | None = None, **more: Any) -> None:
        """`more` goes into the JSON only."""
        at = round(time.monotonic() - self.began, 1)
        with self.lock:
            self.rows.append({"at": at, "name": name, "value": value, "goal": goal, "ok": ok, **more})
            self.path.write_text(json.dumps({"machine": self.machine, "rows": self.rows}, indent=1, default=str))
        print(f"{at:7.1f} s  {self.line(self.rows[-1])}", flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part that may fail without ending the others; a time that is over ends those around it too."""
        began = time.monotonic()
        try:
            yield
        except OutOfTime as late:
            self.row(f"{name}: failed", str(late), "no failure", False)
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(f"{type(error).__name__}: {error}".split())[:700]
            self.row(f"{name}: failed", text, "no failure", False, at_line=f"{where.filename}:{where.lineno}")
        finally:
            self.row(f"{name}: took", round(time.monotonic() - began, 1))

    @staticmethod
    def line(row: dict[str, Any]) -> str:
        verdict = {True: "ok", False: "MISS", None: ""}[row["ok"]]
        value = f"{row['value']:.4g}" if isinstance(row["value"], float) else str(row["value"])
        return "  ".join(part for part in (row["name"], value, row["goal"], verdict) if part)

    def table(self) -> str:
        """All rows that have a goal, then the misses once more."""
        judged = [row for row in self.rows if row["ok"] is not None]
        misses = [self.line(row) for row in judged if not row["ok"]]
        return "\n".join([*map(self.line, judged), f"{len(judged) - len(misses)} met, {len(misses)} missed", *misses])

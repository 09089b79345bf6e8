"""docs/api.md from the CRDs: every field with its type, default and sentence. `hack/generate-reference` writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/api.md"
HEAD = """# API reference
Generated from `crds/` by `hack/generate-reference`; edit the descriptions there.
`kubectl explain ld.spec` says the same.
"""

type Schema = Mapping[str, Any]


def kind_of(schema: Schema) -> str:
    """The type in words."""
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in schema:
        return " \\| ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema['items'])}"
    if schema.get("type") == "object" and "additionalProperties" in schema:
        return f"map to {kind_of(schema['additionalProperties'])}"
    return str(schema.get("format") or schema.get("type", "anything"))


def default_of(schema: Schema, *, required: bool) -> str:
    if "default" in schema and schema["default"] != {}:
        return f"`{schema['default']}`"
    return "required" if required else ""


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rows(schema: Schema, path: str) -> Iterator[str]:
    """A line a field, depth first, in the order of the CRD."""
    required = schema.get("required") or ()
    for name, field in (schema.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        default = default_of(field, required=name in required)
        yield f"| `{where}` | {kind_of(field)} | {default} | {cell(field.get('description', ''))} |"
        yield from rows(field, where)
        if field.get("type") == "array":
            yield from rows(field["items"], f"{where}[]")


def refusals(schema: Schema) -> Iterator[str]:
    """What the API server says when a rule is broken."""
    for rule in schema.get("x-kubernetes-validations") or ():
        yield f"- {cell(rule.get('message', rule['rule']))}"
    for field in (schema.get("properties") or {}).values():
        yield from refusals(field)
    if "items" in schema:
        yield from refusals(schema["items"])


def section(crd: Mapping[str, Any]) -> Iterator[str]:
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(f"`{one}`" for one in names.get("shortNames", ()))
    group = f"{crd['spec']['group']}/{version['name']}"
    yield f"## {names['kind']}\n`{group}`, short name {short}. {cell(schema['description'])}\n"
    for part in ("spec", "status"):
        yield f"### {names['kind']}.{part}\n{cell(schema['properties'][part].get('description', ''))}\n"
        yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
        yield from rows(schema["properties"][part], "")
        yield ""
    said = list(dict.fromkeys(refusals(schema)))
    if said:
        yield f"### What a {names['kind']} is refused for\n"
        yield from said
        yield ""
    columns = [f"| `{one['name']}` | {one.get('description', '')} | {'wide' if one.get('priority') else ''} |"
               for one in version.get("additionalPrinterColumns", ())]  # fmt: skip
    yield "### Columns of `kubectl get`\n\n| column | meaning | |\n| --- | --- | --- |"
    yield from columns
    yield ""


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        lines += section(yaml.safe_load(path.read_text()))
    return "\n".join(lines)


def main() -> int:
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

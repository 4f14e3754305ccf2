"""How griffe reads our docstrings."""

import re

import griffe

_SECTIONS = ("Args", "Returns", "Raises", "Example", "Examples", "Reference")


class Style(griffe.Extension):
    """Examples are called "Examples", and the fields that a class lists, "name: meaning", become a
    list.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for everything that griffe found."""
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            obj.docstring.value = _listed(text) if obj.is_class else text


def _listed(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        match = re.match(r"(\w+(?:, \w+)*): \S", line)
        if match and match[1] not in _SECTIONS:
            if lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            line = f"- {names}{line[match.end(1) :]}"
        lines.append(line)
    return "\n".join(lines)

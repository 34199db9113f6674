"""Build of the wheel, which contains all packages under the import name `atelier`.

In the source tree they are top-level packages, and editable installs import them from there. In a
user's site-packages, top-level `service` and `models` could clash with other packages. So a wheel
has `atelier.service`, `atelier.models`, …, and their imports are rewritten. pyproject.toml has the
rest of the build.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NAME = "atelier"
EXTRA = "cpu"
"""Extra that a wheel installs by default: without a source tree, users need the dependencies of
`atelier up`."""
INIT = f'''"""Images and video from SDXL, Flux, Chroma, FLUX.2, Z-Image, Qwen-Image, Krea 2, Wan
and LTX-2.

`{NAME}.__main__` is the command line.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    from {NAME}.__main__ import main as run

    return run(argv)
'''
"""Text of the package's `__init__.py`, which imports the command line only when it runs."""


def namespaced(source: str, packages: Collection[str]) -> str:
    """Return a source whose absolute imports of these packages are prefixed with `atelier`.

    Raises: ValueError: `import a.b` binds `a`, which a prefix would change.
    """
    lines = source.encode().splitlines(keepends=True)
    for row, column in sorted(_names(ast.parse(source), lines, packages), reverse=True):
        line = lines[row]
        lines[row] = line[:column] + f"{NAME}.".encode() + line[column:]
    return b"".join(lines).decode()


def _names(
    tree: ast.Module, lines: list[bytes], packages: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Yield zero-based lines and byte columns where names of these packages begin."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_of(node.module, packages):
            row = node.lineno - 1
            match = re.compile(rb"from\s+").match(lines[row], node.col_offset)
            assert match is not None
            yield row, match.end()
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_of(alias.name, packages):
                    if alias.asname is None:
                        raise ValueError(f"line {alias.lineno}: write `from … import …` instead")
                    yield alias.lineno - 1, alias.col_offset


def _is_of(module: str | None, packages: Collection[str]) -> bool:
    return module is not None and module.split(".")[0] in packages


class Namespaced(build_py):
    """Copies packages to their place in the distribution, and rewrites their imports."""

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy one module, and rewrite its imports."""
        outfile, copied = super().build_module(module, module_file, package)
        if copied and package.startswith(f"{NAME}."):
            self._rewrite(Path(outfile))
        return outfile, copied

    def run(self) -> None:
        """Copy all modules; `atelier.py` becomes the `__main__` of `python -m atelier`."""
        super().run()
        if not self.editable_mode and self.distribution.package_dir:
            package = Path(self.build_lib, NAME)
            (package / "__init__.py").write_text(INIT, "utf-8")
            self.copy_file(f"{NAME}.py", str(package / "__main__.py"))
            self._rewrite(package / "__main__.py")

    def _rewrite(self, file: Path) -> None:
        packages = {place for place in self.distribution.package_dir.values()}
        try:
            file.write_text(namespaced(file.read_text("utf-8"), packages), "utf-8")
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None


class Wheel(bdist_wheel):
    """Wheel with all packages below `atelier`, built in an empty folder.

    It depends on everything that `atelier up` needs.
    """

    def run(self) -> None:
        """Build the wheel."""
        ours = self.distribution
        tops = {package.split(".")[0] for package in ours.packages}
        ours.package_dir = {f"{NAME}.{top}": top for top in tops}
        ours.packages = [f"{NAME}.{package}" for package in ours.packages]
        ours.py_modules = None
        self.dist_info_dir = None  # discard pip's, which it creates for editable installs, too
        ours.metadata.install_requires = [*ours.install_requires, *ours.extras_require[EXTRA]]
        with TemporaryDirectory() as folder:
            self.get_finalized_command("build").build_lib = folder
            super().run()

    def write_wheelfile(self, wheelfile_base: str, *args: str) -> None:
        """Write the wheel's metadata; setuptools may have listed the source tree's names."""
        super().write_wheelfile(wheelfile_base, *args)
        if self.distribution.package_dir:
            Path(wheelfile_base, "top_level.txt").write_text(f"{NAME}\n", "utf-8")


if __name__ == "__main__":
    setup(cmdclass={"build_py": Namespaced, "bdist_wheel": Wheel})

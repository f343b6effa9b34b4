"""Hooks of mkdocs (mkdocs.yml): the parts of the site besides the pages of docs/.

The README is its first page, and the other pages of the root (such as CONTRIBUTING) belong to it. Links out of docs/,
to source files, lead on the site to copies of these files, so that mkdocs checks them as strictly as links between
pages.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages of the root, by their names on the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
SOURCE = "source"
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the source files that pages link to."""
    for name, address in PAGES.items():
        files.append(File.generated(config, address, content=(ROOT / name).read_text()))
    linked = {target for page in files.documentation_pages() for target in sources(page.src_uri, page.content_string)}
    for target in sorted(linked):
        path = ROOT / target
        if path.is_file():  # otherwise mkdocs reports the link
            files.append(File.generated(config, asset(target), content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site and to the copies of source files."""
    return LINK.sub(lambda link: address_of(page.file.src_uri, link[1]), markdown)


def sources(page: str, text: str) -> list[str]:
    """The files that a page links to and that are no pages, from the root of the project."""
    targets = [in_project(page, target) for target in LINK.findall(text)]
    return [target for target in targets if target not in PAGES and not target.startswith("docs/")]


def in_project(page: str, target: str) -> str:
    """A link's target from the root of the project; `page` is where on the site the link is."""
    folder = "" if page in PAGES.values() else "docs"
    return normpath(str(PurePosixPath(folder) / target))


def address_of(page: str, target: str) -> str:
    """Return a link's target as a link of the site, whose pages are all in one folder."""
    target = in_project(page, target)
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else asset(target)


def asset(target: str) -> str:
    """Return the path of a source file's copy: browsers show text, and download files named .py."""
    return f"{SOURCE}/{target}.txt"

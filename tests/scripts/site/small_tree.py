"""A small project to make a site of: two lessons, a formula, a picture, a glossary."""

import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "scripts/site"))

from build import Site  # noqa: E402
from reference import Reference  # noqa: E402

FILES = {
    "README.md": """# Small

A small project.

    scripts/ladder.sh        runs everything
    scripts/test.sh          tests everything

## The ladder

[one](lessons/01_one/README.md), [all](lessons/), [the end](#the-ladder), [elsewhere](https://example.org/)
""",
    "lessons/01_one/README.md": """# Lesson 01: One

An all-reduce sums. Another all-reduce, and `all_reduce()`. ZeRO is not zero. As Miller et al. 2020 say.

| a | b |
|---|---:|
| 1 | 2 |

- a list
  - in a list

      code in it

```cpp
int a = 1;  // <b>
```

It costs $2 (N-1)/N$ of n, not $5 or $6.

$$\\sum_i x_i$$

<!-- output of: true -->
![A picture](picture.svg)
""",
    "lessons/01_one/picture.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>\n',
    "lessons/01_one/01_one.cpp": """// Lesson 01: one (the first)
//
// Builds on:    nothing
// New idea:     a sum
//               of ranks.
// Paper:        Miller et al. 2020
// Sample runs:  build/lessons/01_one
// Expect:       nothing.

#include "common/sum.hpp"

/// Adds.
class One {
  /// Sums over the ranks.
  void step(Group& world)
  {
    // First the gradients.
    world.barrier();
    all_reduce(1);
    int sum = 2;
  }
};
""",
    "lessons/02_two/README.md": "# Lesson 02: Two\n\nSee [the first](../01_one/README.md#lesson-01-one) and [it](02_two.cpp#L3), [its step](02_two.cpp#step).\n",
    "lessons/02_two/02_two.cpp": """// Lesson 02: two
//
// Builds on:    lesson 01 (one)
// New idea:     another.

#include "common/sum.hpp"

/// Adds.
class Two {
  /// Sums over the ranks.
  void step(Group& world)
  {
    // NEW: nothing but the sum.
    all_reduce(1);
    int sum = 2;
  }
};
""",
    "common/sum.hpp": "#pragma once\nvoid all_reduce(int);\n",
    "docs/glossary.md": "# Glossary\n\n| term | meaning |\n|---|---|\n| all-reduce | A sum. |\n| ZeRO | Shards. |\n"
                        "| 1F1B | A schedule. |\n| end | Of a pipeline: its last stage. |\n",
    "docs/references.md": "# References\n\n| work | used for |\n|---|---|\n"
                          "| Miller et al. 2020, *Sums*, arXiv:2001.00001 | sums |\n",
}

TAGS = """<tagfile>
<compound kind="file"><name>sum.hpp</name><path>common/</path><filename>sum_8hpp.html</filename>
<member kind="function"><type>void</type><name>all_reduce</name><anchorfile>sum_8hpp.html</anchorfile><anchor>a1</anchor>
<arglist>(int)</arglist></member></compound>
<compound kind="class"><name>rankwise::Group</name><filename>group.html</filename>
<member kind="function"><type>void</type><name>barrier</name><anchorfile>group.html</anchorfile><anchor>b2</anchor>
<arglist>()</arglist></member></compound>
</tagfile>
"""


def write(folder, changed=()):
    """Writes the project to a folder, with some of its files changed: path -> text."""
    for path, text in (FILES | dict(changed)).items():
        file = pathlib.Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def make(folder, changed=()):
    """Makes the site of the project, with a reference of two pages and a film of lesson 01; returns its folder."""
    root, html, films = (pathlib.Path(folder, name) for name in ("root", "html", "films"))
    write(root, changed)
    (html / "reference").mkdir(parents=True)
    for name, anchor in (("sum_8hpp.html", "a1"), ("group.html", "b2"), ("index.html", "top")):
        (html / "reference" / name).write_text(f'<p id="{anchor}">It.</p>\n', encoding="utf-8")
    tags = pathlib.Path(folder, "tags.xml")
    tags.write_text(TAGS, encoding="utf-8")
    films.mkdir()
    (films / "01_one.html").write_text("<p>A film.</p>\n", encoding="utf-8")
    Site(root, html, Reference(tags, root), films).make()
    return html

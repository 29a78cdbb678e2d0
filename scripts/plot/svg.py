"""Pieces of an SVG picture, each a string or several."""

from xml.sax.saxutils import escape


def text(x, y, content, anchor="middle", extra=""):
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222222"{extra}>{escape(content)}</text>'


def line(x1, y1, x2, y2, colour, width=1):
    """A straight line."""
    thick = f' stroke-width="{width}"' if width != 1 else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"{thick}/>'


def rectangle(x, y, width, height, colour, title=""):
    """A filled rectangle; viewers show the title when pointed at."""
    words = f"><title>{escape(title)}</title></rect>" if title else "/>"
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{words}'


def polygon(points, colour, title):
    """A filled area; viewers show the title when pointed at."""
    path = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    return f'<path d="M{path}Z" fill="{colour}"><title>{escape(title)}</title></path>'


def curve(points, colour, dashes="", dots=True):
    """A line through points, with dots at them unless it is dashed."""
    path = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    yield f'<path d="M{path}" stroke="{colour}" stroke-width="2"{dashed}/>'
    if dots and not dashes:
        yield from (f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{colour}"/>' for px, py in points)


def document(width, height, title, parts):
    """The whole picture, on white."""
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>', '<g fill="none">']
    return "\n".join([*head, *parts, "</g>", "</svg>"]) + "\n"

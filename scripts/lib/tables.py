"""Tables as aligned text."""


def text_table(rows, left=1):
    """Rows of cells as lines; the first `left` columns, or those with these numbers, to the left, the others to the right."""
    to_the_left = range(left) if isinstance(left, int) else left
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join("  ".join(cell.ljust(width) if i in to_the_left else cell.rjust(width)
                             for i, (cell, width) in enumerate(zip(row, widths))).rstrip() + "\n" for row in rows)

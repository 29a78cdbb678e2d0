"""The rows of a grade as a table to print."""


def table_of(rows):
    """One line an exercise and one for the sum; rows are those of a grade.json."""
    width = max([len(row["title"]) for row in rows] + [5])
    lines = [f"{'exercise':8}  {'title':{width}}  {'points':>7}  verdict"]
    for row in rows:
        points, detail = f"{row['points']}/{row['of']}", row["detail"].split("\n")
        verdict = row["verdict"] + (f": {detail[0]}" if detail[0] else "")
        lines.append(f"{row['exercise']:8}  {row['title']:{width}}  {points:>7}  {verdict}")
        lines += [f"{'':{width + 21}}{line}" for line in detail[1:]]
    total = f"{sum(row['points'] for row in rows)}/{sum(row['of'] for row in rows)}"
    return lines + [f"{'total':8}  {'':{width}}  {total:>7}"]

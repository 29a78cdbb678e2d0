"""Gathers of a pass over nano, in order, worked out from the sizes of its tensors: for the tests of lessons 06 and 07."""

UNITS, RESHARDS = ("block", "branch", "model"), ("after-forward", "after-backward")


class Pass:
    """Gathers of a pass over nano, from the sizes of its tensors alone. Pieces are named by their content."""

    def __init__(self, layers=4, unit="block", prefetch=1, reshard="after-forward", persist=0, recompute=False):
        attention = [64, 64, 64 * 192, 192, 64 * 64, 64]
        mlp = [64, 64, 64 * 256, 256, 256 * 64, 64]
        tensors = {"embedding": [256 * 64, 64 * 64], "head": [64, 64]}
        for b in range(layers):
            tensors |= {f"{b} attention": attention, f"{b} mlp": mlp}
        self.stays = sum(n for name in tensors for n in tensors[name] if n <= persist)
        self.all = sum(map(sum, tensors.values()))
        self.sizes = {}  # elements of a piece that are gathered
        for name in tensors:
            gathered = sum(n for n in tensors[name] if n > persist)
            self.sizes[self.piece(name, unit)] = self.sizes.get(self.piece(name, unit), 0) + gathered

        forward = [[f"{b} {kind}"] for b in range(layers) for kind in ("attention", "mlp")]
        uses = [["embedding"], *forward, ["head", "embedding"]]
        for b in reversed(range(layers)):
            again = [[f"{b} attention"], [f"{b} mlp"]]
            uses += (again if recompute else []) + again[::-1]
        places = []
        for use in uses:
            needs = {piece for name in use if self.sizes[piece := self.piece(name, unit)] > 0}
            if not places or places[-1] != needs:
                places.append(needs)
        windows = [set().union(*places[s:s + prefetch + 1]) for s in range(len(places))]
        if reshard == "after-backward":  # what was there stays as long as it is needed again
            seen = [set().union(*windows[:s + 1]) for s in range(len(places))]
            windows = [seen[s] & set().union(*places[s:]) for s in range(len(places))]
        self.most = max(map(self.size, windows))
        comes = [now - before for before, now in zip([set(), *windows], windows)]
        self.times = {piece: sum(piece in some for some in comes) for piece in self.sizes}  # that each is gathered
        self.gathered = sum(map(self.size, comes))

    @staticmethod
    def piece(name, unit):
        return {"model": "model", "block": name.split()[0], "branch": name}[unit]

    def size(self, pieces):
        return sum(self.sizes[piece] for piece in pieces)


def options_of(unit, prefetch, reshard, persist=0):
    return [f"--unit={unit}", f"--prefetch={prefetch}", f"--reshard={reshard}", f"--persist={persist}"]

"""Cases of the exercise of lesson 15. See scripts/course/judge.py."""

from judge import Case, exercise


@exercise("15.1", hint="expert by expert, in each the order of the tokens; a sequence fills and drops for itself")
def plan(draw):
    for k, factor in ((1, 0), (1, 1), (2, 0), (2, 0.5), (draw.size(1, 3), 1.25), (1, 0.25)):
        E, B, T = draw.size(max(k, 2), 6), draw.size(2, 4), draw.choice((5, 16, 24, 32, 48))
        popular = draw.size(0, E - 1)  # loads differ, and an expert may have no rows
        experts = [e for e in range(E) for _ in range(4 if e == popular else e % 3)] + list(range(k))
        choices = []
        for _ in range(B * T):
            of_token = []
            while len(of_token) < k:
                if (e := draw.choice(experts)) not in of_token:
                    of_token.append(e)
            choices += of_token
        yield Case({"E": E, "k": k, "B": B, "T": T, "capacity_factor": factor, "choices": choices},
                   "{B} sequences of {T} tokens, {k} of {E} experts each, capacity factor {capacity_factor}")

#!/usr/bin/env python3
"""Plans of the split of images among cp ranks, row by row of the grids: the table that
k3_plan --check-vision reads (planner/vision_split.h), for cases that vit_cp_plan.tsv lacks.

usage: make_vision_split.py OUT.tsv [CASES SEED]      CASES more, drawn by chance
"""
import itertools
import random
import sys


def plan(cp, merge_h, least, grids):
    """Fields 3 to 6 of a line."""
    cut = [i for i, (t, h, w) in enumerate(grids)
           if cp > 1 and t * h * w >= least and h % merge_h == 0]
    if not cut:
        return ["-"] * 4
    groups = max(n for n in range(1, cp + 1) if cp % n == 0 and n <= len(cut))
    size, load, group = cp // groups, [0] * groups, {}
    patches = [t * h * w for t, h, w in grids]
    while len(group) < len(cut):
        # the largest that is left, the first of equals, to the first of the lightest
        item = max((i for i in cut if i not in group), key=lambda i: (patches[i], -i))
        group[item] = load.index(min(load))
        load[group[item]] += patches[item]
    # owner of every merge row: they are dealt in equal runs, the last may be short or missing
    runs = [[(i, p)] for i, p in enumerate(patches) if i not in cut]
    for rank, item in itertools.product(range(size), cut):
        if group[item] != 0:
            continue
        t, h, w = grids[item]
        blocks = range(h // merge_h)
        per = next(n for n in itertools.count(1) if n * size >= len(blocks))
        mine = sum(1 for b in blocks if b // per == rank)
        for _ in range(t):
            # every rank sends as many rows as the first, those that it lacks as padding
            runs.append([(item, merge_h * w)] * mine)
            runs.append([(-1, merge_h * w)] * (per - mine))
    keys = ["%d:%d" % (run[0][0], sum(n for _, n in run)) for run in runs if run]
    return [",".join(map(str, cut)), ",".join(str(group[i]) for i in cut),
            "%d %d" % (groups, size), ",".join(keys)]


def cases():
    for cp in (1, 2, 3, 7, 8, 64):
        yield cp, 2, 256, [(1, 16, 16)]                      # just large enough
        yield cp, 2, 256, [(1, 15, 18), (1, 16, 15), (3, 17, 60)]  # odd rows are not cut
        yield cp, 2, 1, [(1, 2, 2)]                          # one merge row
        yield cp, 1, 1, [(1, 1, 1), (2, 1, 3), (1, 5, 1)]    # merge rows of one row
        yield cp, 2, 256, [(4, 2, 64), (1, 2, 256), (1, 4, 65)]    # few rows, many ranks
        yield cp, 2, 256, [(1, 512, 512)]
        yield cp, 2, 256, [(1, 2, 2)] * 40 + [(1, 36, 36)] + [(1, 2, 2)] * 9
        yield cp, 2, 4, [(1, 2, 2)] * 50                     # many small ones, all alike
        yield cp, 3, 9, [(1, 3, 3), (1, 9, 4), (2, 6, 3), (1, 4, 4)]
        yield cp, 2, 256, [(1, 16, 16), (1, 16, 15), (1, 16, 17), (1, 14, 18), (1, 18, 16)]
    yield 2, 2, 256, [(1, 65534, 512)]
    yield 300, 2, 256, [(1, 36, 36), (1, 16, 16)]


def drawn(n, seed):
    r = random.Random(seed)
    for _ in range(n):
        merge = r.choice((1, 2, 2, 2, 3))
        side = r.choice((4, 12, 70))
        grids = [(r.choice((1, 1, 1, 2, 4)), r.randint(1, side) * r.choice((1, merge)),
                  r.randint(1, side)) for _ in range(r.randint(1, r.choice((3, 12, 60))))]
        yield r.choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 30, 64)), merge, r.choice((1, 64, 256)), grids


more = drawn(int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else ()
with open(sys.argv[1], "w") as out:
    print("# by make_vision_split.py: cp merge_h min_patches, grids, items that are cut, groups, "
          "number and size, keys of group 0", file=out)
    for cp, merge, least, grids in itertools.chain(cases(), more):
        print("%d %d %d" % (cp, merge, least), ";".join("%d,%d,%d" % g for g in grids),
              *plan(cp, merge, least, grids), sep="\t", file=out)

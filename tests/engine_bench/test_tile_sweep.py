from benchmarks.engine.kernels_stage import neighbours


def test_a_sweep_begins_with_the_present_tile_and_changes_one_number_at_a_time():
    tile = {"BLOCK": 64, "num_warps": 1, "num_stages": 2}

    found = neighbours(tile)

    assert found[0] == tile
    assert {"BLOCK": 32, "num_warps": 1, "num_stages": 2} in found
    assert {"BLOCK": 64, "num_warps": 1, "num_stages": 1} in found
    assert all(sum(other[name] != tile[name] for name in tile) == 1 for other in found[1:])
    assert all(min(other.values()) > 0 for other in found)

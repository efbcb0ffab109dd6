"""Whether a run is finished with other choices of heads."""

from attention_plasticity.run.differences import is_finished
from dumps import add_rotary, make_dump
from runs_here import analyse, settings


def test_a_run_of_some_heads_is_finished_for_these_heads_alone(tmp_path):
    dump, out = tmp_path / "dump", tmp_path / "out"
    add_rotary(make_dump(dump, layers=2, q_heads=2, k_heads=1, n=60, d=4), 2, 4)
    analyse(dump, out, layers=[0], heads=[0])
    assert is_finished(settings(dump, out, layers=[0], heads=[0]), out)
    assert not is_finished(settings(dump, out, layers=[0, 1], heads=[0]), out)
    assert not is_finished(settings(dump, out, layers=[0]), out)
    assert not is_finished(settings(dump, out, heads=[1]), out)
    assert not is_finished(settings(dump, out), out)
    analyse(dump, out)
    assert is_finished(settings(dump, out), out)
    assert is_finished(settings(dump, out, layers=[1]), out)

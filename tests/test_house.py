"""Rules of the house: what is public, who imports whom, what stays light, configs, workflows."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

import attention_plasticity as ap
from attention_plasticity.cli import _VERBS as VERBS
from attention_plasticity.config import load_config

ROOT = Path(__file__).parents[1]
NAMED_BY_THE_SEEDS = {
    "RunnerConfig",
    "analyze_head",
    "compute_attention_plasticity",
    "compute_first_component_residual_stats",
    "compute_noise_normality_stats",
    "compute_scalar_position_predictability",
    "fit_multioutput_linear_regressor",
    "make_pos_rotation",
    "orientation_from_keys",
    "sample_key_pairs",
}


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == ap.__version__
    assert re.search(r"^## (.+)$", changes, re.MULTILINE)[1] == ap.__version__


def test_all_is_sorted_complete_and_importable():
    assert ap.__all__ == sorted(ap.__all__)
    assert set(ap.__all__) >= NAMED_BY_THE_SEEDS
    assert all(getattr(ap, name) is not None for name in ap.__all__)
    assert {*dir(ap), "__version__"} == set(ap.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ap.nonsense


def modules_imported_by(path):
    """Modules a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def imports_of(path):
    """Packages a file imports."""
    return {module.split(".")[0] for module in modules_imported_by(path)}


STAGES = {"attention_plasticity", "qk_sniffer"}
ANALYSIS = ROOT / "src" / "attention_plasticity"
KVPRESS = ANALYSIS / "kvpress.py"  # presses of kvpress need torch
TENSORS = ANALYSIS / "export" / "tensor_file.py"  # an export that is a .pt file, too


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("qk_toolkit", {*STAGES, "qk_dump", "qk_study", "torch", "transformers"}),
        ("qk_dump", {*STAGES, "qk_study", "torch", "transformers"}),
        ("attention_plasticity", {"qk_sniffer", "qk_study", "torch", "transformers"}),
        ("qk_sniffer", {"attention_plasticity", "qk_study"}),
        ("qk_study", {"torch", "transformers"}),
    ],
)
def test_imports_run_down(package, forbidden):
    for path in (ROOT / "src" / package).rglob("*.py"):
        allowed = {KVPRESS: {"torch", "transformers"}, TENSORS: {"torch"}}.get(path, set())
        assert not imports_of(path) & (forbidden - allowed), path
        assert path == KVPRESS or "kvpress" not in imports_of(path), path


def test_neither_files_nor_folders_import_in_a_circle():
    """`__init__.py` is left out: it only passes on names."""
    source = ROOT / "src"
    module_of = {
        ".".join(path.relative_to(source).with_suffix("").parts): path
        for path in source.rglob("*.py")
        if path.name != "__init__.py"
    }
    files = {
        module: {other for other in modules_imported_by(path) if other in module_of}
        for module, path in module_of.items()
    }
    folders = {}
    for module, others in files.items():
        inside = folders.setdefault(folder_of(module), set())
        inside |= {folder_of(other) for other in others} - {folder_of(module)}
    for graph in (files, folders):
        list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def folder_of(module):
    """The subfolder of a package that holds the module, or the module itself where none does."""
    return ".".join(module.split(".")[:2])


def modules_loaded_by(code):
    """Modules that a new process has loaded at its end."""
    report = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    done = subprocess.run(
        [sys.executable, "-c", report + code], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


ROTARY = ROOT / "src" / "qk_dump" / "rotary.py"  # the rotation of both stages
OURS = "attention_plasticity"
ROOMS = {
    "estimate": ("numpy", "scipy", f"{OURS}.estimate", "qk_toolkit.arrays"),
    "read": (
        *("numpy", "pyarrow", "qk_dump", "qk_toolkit", f"{OURS}.read", f"{OURS}.estimate"),
        *(f"{OURS}.config", f"{OURS}.metrics"),
    ),
    "measure": (
        *("numpy", "scipy", "pandas", "qk_dump", "qk_toolkit.arrays", "qk_toolkit.errors"),
        *(f"{OURS}.{name}" for name in ("measure", "read", "estimate", "config", "metrics")),
        f"{OURS}.statistics",
    ),
}
"""What the rooms of the analysis may import, beside the standard library."""


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_analysis_import_what_is_below_them(room):
    allowed = (*ROOMS[room], *sys.stdlib_module_names)
    files = sorted((ANALYSIS / room).rglob("*.py"))
    assert len(files) > 5
    for path in files:
        for module in modules_imported_by(path):
            assert f"{module}.".startswith(tuple(f"{name}." for name in allowed)), (
                f"{path} imports {module}"
            )


def test_arrays_need_numpy_and_scipy_only():
    """The estimator, the rotation, and the functions that the seeds name."""
    doors = [ANALYSIS / "statistics.py", ANALYSIS / "plasticity.py"]
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (*sorted((ANALYSIS / "estimate").rglob("*.py")), *doors, ROTARY)
    ]
    loaded = modules_loaded_by("\n".join(f"import {module}" for module in modules))
    assert not {"pydantic", "pyarrow", "pandas"} & loaded
    assert {module for module in loaded if module.split(".")[0] == "qk_dump"} <= {
        *("qk_dump", "qk_dump.rotary")
    }


def test_only_doors_are_on_the_top_floor_of_the_analysis():
    assert len(list(ANALYSIS.glob("*.py"))) <= 14


SEVERAL_HELPS = """
from attention_plasticity.cli import _VERBS, main
from qk_sniffer.cli import main as main_of_qk_sniffer
for main, words in [(main, []), (main_of_qk_sniffer, []), (main, ["plot", "map"]),
                    *[(main, [verb]) for verb in ("analyze", *_VERBS)]]:
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert not end.code, words
"""


@pytest.mark.parametrize("code", ["import attention_plasticity", SEVERAL_HELPS])
def test_import_and_help_load_no_heavy_library(code):
    heavy = {"numpy", "scipy", "pandas", "pyarrow", "torch", "transformers", "datasets", "rich"}
    assert not (heavy | {"huggingface_hub", "matplotlib"}) & modules_loaded_by(code)


def test_no_package_finds_another_by_entry_points():
    """Verbs of other packages are named in one table of the command line."""
    for path in (ROOT / "src").rglob("*.py"):
        assert "importlib.metadata.entry_points" not in modules_imported_by(path), path
    named = {module.split(".")[0] for module, _ in VERBS.values()}
    assert named == {"attention_plasticity", "qk_dump", "qk_sniffer", "qk_study"}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_config_loads(path):
    config = load_config(path)
    assert config.num_layers
    assert config.num_q_heads
    assert config.num_k_heads
    assert config.output_dir == f"results/{path.stem}"


def test_packages_are_typed():
    for package in ("attention_plasticity", "qk_dump", "qk_sniffer", "qk_study", "qk_toolkit"):
        assert (ROOT / "src" / package / "py.typed").exists()


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("analyze_head", "layer q_head k_head"),
        ("fit_multioutput_linear_regressor", "t X"),
        ("make_pos_rotation", "beta"),
        ("compute_scalar_position_predictability", "p X beta"),
        ("sample_key_pairs", "lengths num_pairs max_rel_dist rng"),
        (
            "compute_attention_plasticity",
            "p_q b_q X_q_rot alpha_rot beta_rot resid_var p_k b_k example_ids_k X_k_rot "
            "num_pairs_per_bucket bucket_window_limits",
        ),
    ],
)
def test_functions_keep_the_argument_names_their_users_know(function, names):
    parameters = list(inspect.signature(getattr(ap, function)).parameters)
    assert parameters[: len(names.split())] == names.split()


def test_an_except_of_all_errors_gives_its_reason():
    wide = re.compile(r"except( \(?(Base)?Exception\b[^#]*)?:\s*$|suppress\((Base)?Exception\)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if wide.search(line)
    ]
    assert found == []


def _job(name):
    """The only job of a workflow."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    [job] = yaml.safe_load(text)["jobs"].values()
    return dict(job)


def _commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_changes_are_checked_on_every_supported_python():
    job = _job("ci")
    assert _commands(job) == [".ci/run"]
    assert (ROOT / ".ci" / "run").is_file()
    versions = job["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={versions[0]}"


def test_everything_is_tested_at_night():
    assert _commands(_job("nightly")) == ["make test-all"]
    assert "\ntest-all:" in (ROOT / "Makefile").read_text(encoding="utf-8")

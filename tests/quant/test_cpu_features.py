from pathlib import Path

from loraplex.quant.cpu_features import cpu_features, cpu_name, has_bfloat16

AMD = """processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni
"""


def test_reads_what_matters(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(AMD)
    features = cpu_features(tmp_path / "cpuinfo")
    assert features == {"avx2", "avx512f", "avx512_bf16", "avx512_vnni"}
    assert has_bfloat16(features)
    assert not has_bfloat16(features - {"avx512_bf16"})
    assert cpu_name(tmp_path / "cpuinfo") == "AMD EPYC 9R14"


def test_a_system_without_a_list(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "missing") == frozenset()
    assert cpu_name(tmp_path / "missing")

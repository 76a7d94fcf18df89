"""Which tests the edit loop runs."""

from pathlib import Path

import pytest

from .fast import MOST_FILES, OF_OTHERS, ROOT, Budget, files_for


def test_a_module_is_tested_by_its_namesake_first_and_by_those_that_import_it() -> None:
    tests = files_for(["platform/engine/kv_cache/block_pool.py"])
    assert tests[0] == "tests/engine/kv_cache/test_block_pool.py"
    assert "tests/engine/test_core.py" in tests and "tests/web/test_chat.py" not in tests


def test_a_changed_test_comes_before_all() -> None:
    tests = files_for(["platform/engine/kv_cache/block_pool.py", "tests/web/test_chat.py"])
    assert tests[0] == "tests/web/test_chat.py"


def test_a_helper_of_tests_is_tested_by_those_that_use_it() -> None:
    assert "tests/browser/test_few_clicks.py" in files_for(["tests/browser/clicks.py"])


def test_clients_run_in_another_environment() -> None:
    tests = files_for(["tests/clients/conftest.py", "tests/clients/test_npm.py", "tests/integration/live_server.py"])
    assert tests and not any(test.startswith("tests/clients/") for test in tests)


@pytest.mark.parametrize("start", OF_OTHERS)
def test_what_is_no_python_has_tests_too(start: str) -> None:
    assert {*OF_OTHERS[start]} <= {*files_for([f"{start}anything.txt"])}
    assert all((ROOT / test).is_file() for test in OF_OTHERS[start])


def test_time_that_is_up_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_one(): ...\ndef test_two(): raise ValueError\n")
    budget = Budget(-1.0)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--rootdir={tmp_path}", str(tmp_path)]
    assert pytest.main(arguments, plugins=[budget]) == pytest.ExitCode.INTERRUPTED and budget.is_over
    assert MOST_FILES > 10

"""The fault table: what can go wrong around a run, what the user is told, and the tests that inject it."""

from typing import NamedTuple

INJECTED = "tests/faults/test_injected_faults.py"
RUN = "tests/test_run.py::test_bad_input_is_one_sentence_and_code_2"
LOAD = "tests/models/test_load.py"
PROMPTS = "tests/prompts/test_bad_input.py"
WRITER = "tests/tracking/test_writer.py"


class Row(NamedTuple):
    """One fault.

    Attributes:
        answer: exit code, remedy, and the status of the MLflow run where there is one.
        tests: node ids of the tests that inject it.
    """

    fault: str
    answer: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "unknown drafter, or none",
        "2, the options and a near miss; no run",
        (f"{RUN}[+drafter=ngrm]", f"{RUN}[nothing]"),
    ),
    Row(
        "a misspelt key, gamma 0 or beyond any draft, a temperature below 0 or NaN",
        "2, key and bound; no run",
        (
            f"{RUN}[+drafter=ngram +gama=4]",
            "tests/plan/test_refusals.py::test_a_configuration_is_refused_before_a_model_is_read",
            "tests/faults/test_fuzzed_configuration.py::test_command_lines",
            "tests/faults/test_fuzzed_configuration.py::test_values",
        ),
    ),
    Row(
        "gamma beyond the room left",
        "0, clamped; counted in offered",
        ("tests/test_run.py::test_a_draft_longer_than_the_room_left_is_clamped_and_counted",),
    ),
    Row(
        "prompts longer than the context, empty prompts",
        "0, left out and counted in a note; 2 where none is left",
        (
            f"{INJECTED}::test_a_cell_without_memory_fails_alone_and_unusable_prompts_are_counted",
            f"{PROMPTS}::test_all_too_long_says_how_many_and_why",
        ),
    ),
    Row(
        "token ids beyond the vocabulary; a drafter of another vocabulary",
        "2, the id and the vocabulary; no run",
        (
            f"{PROMPTS}::test_text_without_a_tokenizer_and_tokens_outside_the_vocabulary",
            "tests/test_run.py::test_a_drafter_of_another_vocabulary_is_refused",
        ),
    ),
    Row(
        "truncated or garbage safetensors, a bad config.json, missing weights, wrong shapes",
        "2, the path; no run",
        (
            f"{LOAD}::test_a_bad_folder_is_one_sentence",
            "tests/faults/test_fuzzed_checkpoints.py::test_models",
            "tests/faults/test_fuzzed_checkpoints.py::test_published_heads",
        ),
    ),
    Row(
        "layers missing from a checkpoint",
        "2, the missing keys; no run",
        (
            f"{LOAD}::test_a_bad_folder_is_one_sentence",
            f"{INJECTED}::test_a_config_of_more_layers_than_tensors_is_refused_at_once",
        ),
    ),
    Row(
        "flipped bytes in weights",
        "2 where a weight is not finite; 4 and FAILED, with the position, where the logits are not",
        (
            f"{LOAD}::test_a_bad_folder_is_one_sentence",
            f"{INJECTED}::test_huge_weights_end_the_run_as_failed_with_the_position",
        ),
    ),
    Row(
        "NaN or infinite logits",
        "4 and FAILED, with the position; the rounds before are kept",
        (
            "tests/models/test_numerics.py::test_the_run_ends_at_the_position_and_keeps_the_rounds_before",
            "tests/test_run.py::test_nan_logits_end_the_run_as_failed_and_keep_the_rounds",
        ),
    ),
    Row(
        "a residual without mass",
        "0, drawn from p; counted in a note",
        (
            "tests/test_sampling.py::test_residual_is_the_positive_part_row_by_row_and_p_of_equal_laws",
            "tests/analysis/findings/test_sentences.py::test_rejections_without_a_residual_are_counted",
        ),
    ),
    Row(
        "a malicious pytorch_model.bin",
        "2, never opened",
        (
            f"{LOAD}::test_a_bad_folder_is_one_sentence",
            "tests/faults/test_security.py::test_no_code_in_a_pickle_runs",
        ),
    ),
    Row("a repository with code of its own", "2 or ignored, never run", (f"{LOAD}::test_remote_code_is_not_run",)),
    Row("a data set that is a script", "2, never run", (f"{PROMPTS}::test_a_folder_of_json_lines_by_hub_id",)),
    Row(
        "a bad line, an empty file",
        "2, file and line",
        (f"{PROMPTS}::test_faults_of_a_file", "tests/faults/test_fuzzed_text_files.py::test_prompt_files"),
    ),
    Row(
        "a truncated arrow cache",
        "fetched once more, then 2",
        (f"{PROMPTS}::test_a_truncated_cache_is_fetched_once_more",),
    ),
    Row(
        "a hub id without a network",
        "2 within seconds, the cache that was searched",
        (f"{INJECTED}::test_a_hub_that_does_not_answer_is_asked_once", f"{LOAD}::test_a_hub_id_that_cannot_be_had"),
    ),
    Row(
        "a database that is garbage",
        "2, the file; it is left as it is",
        (
            "tests/faults/test_bad_surroundings.py::test_one_sentence_and_the_right_code",
            f"{WRITER}::test_a_file_that_is_no_mlflow_database_is_refused_and_kept",
        ),
    ),
    Row(
        "a deleted experiment",
        "2, how to restore it",
        (f"{WRITER}::test_a_deleted_experiment_is_refused_with_both_ways_out",),
    ),
    Row(
        "the tracking server gone in the middle of a run",
        "0 with a warning, results on disk; 4 with tracking.required",
        (
            f"{WRITER}::test_a_store_that_goes_away_costs_one_warning",
            f"{WRITER}::test_a_required_store_that_goes_away_ends_the_run",
        ),
    ),
    Row(
        "a full disk",
        "4, before decoding where it can be known; FAILED",
        (
            f"{INJECTED}::test_a_disk_that_fills_up_ends_the_run_as_failed",
            f"{INJECTED}::test_a_run_that_will_not_fit_is_refused",
        ),
    ),
    Row(
        "memory runs out in one cell",
        "3, the bytes that were asked for; the other cells finish",
        (f"{INJECTED}::test_a_cell_without_memory_fails_alone_and_unusable_prompts_are_counted",),
    ),
    Row("many first runs on a new database", "0", (f"{WRITER}::test_six_first_runs_at_once",)),
    Row(
        "two runs in one second",
        "0, each in its own folder",
        ("tests/commands/test_cli.py::test_the_task_gets_plain_values_and_a_folder_of_its_own",),
    ),
    Row(
        "hostile names and paths in configurations and files",
        "0, escaped and below their folder; 2 where a name would leave it",
        (
            "tests/faults/test_security.py::test_hostile_names_are_only_text",
            "tests/faults/test_security.py::test_a_name_stays_below_its_folder",
            f"{WRITER}::test_values_arrive",
        ),
    ),
    Row(
        "a working folder that cannot be written",
        "2, how to name another",
        (
            f"{INJECTED}::test_a_folder_that_cannot_be_written",
            f"{INJECTED}::test_a_database_in_a_folder_that_cannot_be_written",
            "tests/faults/test_bad_surroundings.py::test_one_sentence_and_the_right_code",
        ),
    ),
    Row(
        "a plugin that raises when it is imported",
        "0 with a warning; named where it is asked for",
        (f"{INJECTED}::test_a_broken_plugin_is_left_out_and_named",),
    ),
)
"""Signals, kill -9 and resumption have tests of their own: tests/tracking and tests/experiment."""

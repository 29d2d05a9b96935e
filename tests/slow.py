"""Which modules are slow: `make test-fast` leaves them out, `make test` does not."""

#: By their paths under `tests`.  Each takes about two CPU seconds or more, and other modules test its package.
SLOW = frozenset({
    # Whole runs, held against theory and measurements.
    "anchors/test_attention_kinds.py", "anchors/test_calibrated_oracles.py", "anchors/test_queueing.py",
    "anchors/test_serving_runs.py", "research/test_serving.py", "research/test_serving_command.py",
    "workload/test_extracts.py",
    # Profiles, fitted and judged.
    "calibration/test_calibrate.py", "calibration/test_checks.py", "calibration/test_fit_constants.py",
    "calibration/test_points.py", "calibration/test_reading.py", "cli/test_calibrate.py",
    "oracles/efficiency/test_profile.py", "validation/test_kernels.py", "research/test_left_out_kernels.py",
    # Hundreds of runs, played twice and compared.
    "laws/test_adapters.py", "laws/test_lookahead.py", "kv/transfer/test_laws.py", "kv/cache/test_both_caches.py",
    "results/test_saturation.py", "results/test_streaming.py",
    "testing/test_mutants.py",
    # Searches for capacities, of a dozen runs and more each.
    "study/capacity/test_coverage.py", "study/capacity/test_early_stop.py", "study/capacity/test_highest_rate.py",
    "study/capacity/test_queues.py",
    # Processes of their own.
    "cli/test_signals.py", "server/test_serve.py", "simulation/test_parallel_replicas.py",
    # Whole fleets, live and as runs.
    "server/test_live.py", "server/test_long_lived.py", "server/test_recording.py",
    # Every command and key with what it must refuse.
    "cli/test_bad_inputs.py", "cli/test_files.py", "scenario/test_numbers.py",
    # Figures and traces, drawn and written.
    "cli/test_explain.py", "cli/test_explain_fleets.py", "cli/test_front.py", "cli/test_roofline.py",
    "views/page/test_browser.py", "views/test_perfetto.py", "views/test_run_plots.py",
    "simulation/test_why_not_split.py",
    # The whole repository.
    "scenario/test_scenario_examples.py", "test_contributing.py", "test_gallery.py", "test_manual.py",
    "test_notebooks.py", "test_package.py", "test_readme.py", "test_speed_gate.py",
    # Tunings, run for real.
    "cli/test_tune.py", "study/tuning/test_tune_example.py", "study/tuning/test_tuning.py",
})

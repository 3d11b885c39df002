"""Run a suite on your shapes and look at its table: `python examples/run_a_suite.py` (to_pandas needs pandas)."""

import attnbench

if __name__ == "__main__":
    result = attnbench.run(
        "quick", backends=["sdpa", "sdpa-math"], axes={"batch": [1], "seqlen": [200], "causal": [True]}, max_seconds=0.5
    )
    print(result)
    frame = result.to_pandas()
    print(frame[["case_id", "backend", "status", "time.median_ms", "rate.tflops", "speedup.ratio", "speedup.verdict"]])
    result.save("run_a_suite.json")

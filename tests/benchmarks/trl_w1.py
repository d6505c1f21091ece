"""The job W1 on TRL's synchronous GRPOTrainer. Run by bench_w1, with a Python that has TRL; prints one JSON line last.

    python tests/benchmarks/trl_w1.py MODEL_FOLDER QUESTIONS STEPS SEED THREADS SYSTEM_PROMPT

W1: SmolLM2-135M-Instruct in bfloat16, LoRA rank 16 on every linear layer, chain_sum of two one-digit terms (a JSONL file), 8 prompts x 8
completions a step, at most 24 new tokens, temperature 1, no KL, learning rate 2e-4, token-mean loss, AdamW without decay.
"""

import json
import os
import re
import resource
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
started = time.time()

import torch  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402


class Clock(TrainerCallback):
    """When training began, and when each step ended."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_train_begin(self, *given: Any, **named: Any) -> None:
        self.moments.append(time.time())

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.moments.append(time.time())


def rewards(completions: list[Any], answer: list[str], **others: Any) -> list[float]:
    """1 where the last number is the answer."""
    found = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == right) for numbers, right in zip(found, answer, strict=True)]


def main() -> None:
    folder, questions, steps, seed, threads, system = *sys.argv[1:3], *map(int, sys.argv[3:6]), sys.argv[6]
    torch.set_num_threads(threads)
    with open(questions, encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    rows = [
        {"prompt": [{"role": "system", "content": system}, {"role": "user", "content": task["prompt"]}], "answer": task["answer"]}
        for task in tasks
    ]
    settings = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=24,
        temperature=1.0,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dapo",
        logging_steps=1,
        report_to=[],
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16),
        reward_funcs=rewards,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        callbacks=[clock],
    )
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "name": f"TRL {trl.__version__}",
        "seed": seed,
        "rewards": [round(entry["reward"], 4) for entry in history],
        "ends": [round(moment - clock.moments[0], 3) for moment in clock.moments[1:]],
        "startup_s": round(clock.moments[0] - started, 1),
        "tokens_a_sample": round(sum(entry["completions/mean_length"] for entry in history) / len(history), 2),
        "peak_mb": {"trl": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024},
        "torch": torch.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

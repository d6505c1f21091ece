"""The control plane: stores experiments, dispatches jobs, streams what they emit. Never imports torch, ray, vllm or peft."""

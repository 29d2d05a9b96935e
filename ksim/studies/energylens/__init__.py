"""What the EnergyLens paper found about the energy of inference, asked of ksim with the paper's own settings.

EnergyLens (arXiv 2605.14249) measured and predicted Llama 3 70B and Qwen3 30B A3B on eight A100 SXM with TensorRT-LLM:
fixed batches of equal requests.  `survey` asks about batches, GPUs, all-reduces and power, `overlap` and `fusion` about
what their names say; docs/energylens.md says how ours compare.
"""

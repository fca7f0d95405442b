"""GPT trained by Megatron-core, as a script that the driver runs."""

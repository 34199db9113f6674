"""Field names of other APIs, mapped to this API's names, for error messages."""

from __future__ import annotations

from collections.abc import Mapping

_SIZE = "width and height"
_LENGTH = "num_frames and fps"
SHAPES: Mapping[str, str] = {
    "scheduler": '{"name": "euler"}',
    "loras": '{"name": "…", "scale": 1.0}',
    "control": '{"name": "…", "image": "…"}',
    "image_prompts": '{"image": "…"}',
    "upscale": '{"name": "…", "scale": 2}',
    "hires": '{"scale": 2}',
    "output": '{"format": "png"}',
    "webhook": '{"url": "https://…"}',
}
"""Examples of the objects in a request, by field."""

_SCHEDULER = f"scheduler, such as {SHAPES['scheduler']}"
_LORAS = f"loras, such as [{SHAPES['loras']}]"
_CONTROL = f"control, such as [{SHAPES['control']}]"
_IMAGE_PROMPTS = f"image_prompts, such as [{SHAPES['image_prompts']}]"

_UPSCALE = f"upscale, such as {SHAPES['upscale']}"
_HIRES = f"hires, such as {SHAPES['hires']}"

_GENERATE = {
    # OpenAI and compatible APIs
    "n": "num_images",
    "size": _SIZE,
    "aspect_ratio": _SIZE,
    "resolution": _SIZE,
    "response_format": "output.inline, or the Accept header",
    "output_format": "output.format",
    "output_quality": "output.quality",
    "output_compression": "output.quality",
    "format": "output.format",
    "mask": "mask_image",
    "video": "control_video",
    "video_url": "control_video",
    "src_video": "control_video",
    "src_mask": "mask_video",
    "src_ref_images": "reference_images",
    "context_scale": "conditioning_scale",
    "seconds": _LENGTH,
    "duration": _LENGTH,
    "user": "metadata",
    "stream": "the header Accept: text/event-stream",
    "model_name": "model",
    "model_id": "model",
    "input": "prompt",
    "inputs": "prompt",
    "text": "prompt",
    # AUTOMATIC1111 and ComfyUI
    "steps": "num_inference_steps",
    "sample_steps": "num_inference_steps",
    "cfg": "guidance_scale",
    "cfg_scale": "guidance_scale",
    "guidance": "guidance_scale",
    "distilled_cfg_scale": "guidance_scale",
    "sampler": _SCHEDULER,
    "sampler_name": _SCHEDULER,
    "sampler_index": _SCHEDULER,
    "scheduler_name": _SCHEDULER,
    "batch_size": "num_images",
    "n_iter": "num_images",
    "controlnet": _CONTROL,
    "control_images": _CONTROL,
    "controlnet_conditioning_scale": "control.0.scale",
    "control_guidance_start": "control.0.start",
    "control_guidance_end": "control.0.end",
    "ip_adapter_image": _IMAGE_PROMPTS,
    "ip_adapter_scale": "image_prompts.0.scale",
    "redux_image": _IMAGE_PROMPTS,
    "upscaler": _UPSCALE,
    "upscaler_1": _UPSCALE,
    "upscaling_resize": "upscale.scale",
    "enable_hr": _HIRES,
    "hires_fix": _HIRES,
    "hr_scale": "hires.scale",
    "hr_upscaler": "hires.upscaler",
    "hr_second_pass_steps": "hires.num_inference_steps",
    "hr_resize_x": "hires.width",
    "hr_resize_y": "hires.height",
    "upscale_factor": "upscale.scale",
    "images": "image and reference_images",
    "reference_image": "reference_images",
    "init_image": "image",
    "init_images": "image",
    "input_image": "image",
    "denoise": "strength",
    "denoising_strength": "strength",
    "prompt_strength": "strength",
    "image_strength": "strength",
    "negative": "negative_prompt",
    "checkpoint": "model",
    "sd_model_checkpoint": "model",
    # diffusers, Replicate, fal and video APIs
    "num_outputs": "num_images",
    "num_images_per_prompt": "num_images",
    "num_videos_per_prompt": "num_images",
    "samples": "num_images",
    "num_steps": "num_inference_steps",
    "image_url": "image",
    "mask_url": "mask_image",
    "first_image": "image",
    "first_frame": "image",
    "start_image": "image",
    "end_image": "last_image",
    "last_frame": "last_image",
    "image_size": _SIZE,
    "num_seconds": _LENGTH,
    "video_length": "num_frames",
    "frames": "num_frames",
    "frame_rate": "fps",
    "frames_per_second": "fps",
    "random_seed": "seed",
    "generator": "seed",
    "lora": _LORAS,
    "lora_weights": _LORAS,
    "lora_scale": "loras.0.scale",
    "webhook_url": "webhook.url",
    "callback_url": "webhook.url",
    "timeout": "deadline_s",
    "preset": "quality",
}
_CONTROL_ENTRY = {
    "weight": "scale",
    "strength": "scale",
    "model": "name",
    "type": "name",
    "control_image": "image",
    "module": "preprocess",
    "guidance_start": "start",
    "guidance_end": "end",
}
_LORA = {"weight": "scale", "strength": "scale", "path": "name", "model": "name", "id": "name"}

ALIASES: Mapping[str, Mapping[str, str]] = {
    "": _GENERATE,
    "loras": _LORA,
    "control": _CONTROL_ENTRY,
    "image_prompts": {"weight": "scale", "strength": "scale", "model": "name"},
    "hires": {
        "denoise": "strength",
        "denoising_strength": "strength",
        "steps": "num_inference_steps",
        "name": "upscaler",
    },
    "upscale": {"model": "name", "model_name": "name", "upscaler": "name", "factor": "scale"},
    "output": {"type": "format", "compression": "quality", "base64": "inline"},
    "webhook": {"address": "url"},
}
"""Aliases by the path of the object that contains the field."""

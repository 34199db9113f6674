"""Default prompts for calibration."""

PROMPTS = (
    "a portrait of an old fisherman, soft window light",
    "a red bicycle leaning against a blue wall",
    "a mountain lake at sunrise, mist over the water",
    "a bowl of ramen with a soft egg, seen from above",
    "a crowded market street in the rain at night, neon signs",
    "a watercolour of a fox in the snow",
    "an astronaut riding a horse over a green hill",
    "a wooden table with a glass of water, a book and a pair of glasses",
)

import warnings

with warnings.catch_warnings():  # of the modules that diffusers imports for this
    warnings.simplefilter("ignore")
    from diffusers.pipelines import auto_pipeline as auto_pipeline

"""What SGLang's registry of models holds from the start: the architectures that we serve, and no others.

By itself the registry imports every model that SGLang has, 250 modules and what they import: about a fifth of all that
a zygote imports. With a package of models named (`SGLANG_EXTERNAL_MODEL_PACKAGE`) it imports that package alone, and
the others once a checkpoint asks for one of them (`srt/models/registry.py` of sglang 0.5.23).
"""

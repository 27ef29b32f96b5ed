"""xce.h by ctypes: its constants, structs and functions, statuses as exceptions. Needs Python alone.

load(path) gives the library; Context(lib, device) one of its contexts; args(Struct, **fields) a struct of zeros but for
its size and these fields, those of `loss` by the prefix loss_. tests/capi/ctypes_test.py compares structs with xce.h.
"""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

FLOAT32, BFLOAT16, FLOAT64, FLOAT16, INT32, INT64 = 1, 2, 3, 4, 5, 6
MEAN, SUM, NONE = 0, 1, 2
FORWARD, BACKWARD, FORWARD_BACKWARD, BEGIN_FINISH = 1, 2, 3, 4


def fields(*groups):
    """[("rows", c_int64), ...] from (type, "names of that type") groups."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Loss(ctypes.Structure):
    _fields_ = fields(
        (c_int64, "rows vocab shard_offset vocab_global"), (c_int32, "dtype label_dtype"), (c_void_p, "labels"),
        (c_int64, "label_stride ignore_index"), (c_int32, "has_ignore_index reduction"),
        (c_double, "z_loss label_smoothing softcap logit_scale"),
        (c_void_p, "class_weights token_weights probabilities"), (c_int64, "ld_probabilities"),
        (c_int32, "probability_dtype out_of_range_is_nan"), (c_void_p, "denominator"),
        (c_int32, "empty_is_nan upstream_is_scalar"), (c_void_p, "upstream"), (c_int64, "upstream_stride"),
        (c_void_p, "loss loss_total row_loss offset logsum z_loss_part n_valid out_of_range weight_sum "
                   "first_out_of_range row_max row_entropy argmax n_correct"), (c_uint64 * 8, "reserved"))


class LinearCrossEntropyArgs(ctypes.Structure):
    _fields_ = fields(
        (c_size_t, "struct_size"), (Loss, "loss"), (c_int64, "hidden"), (c_void_p, "x weight bias"),
        (c_int64, "ldx ldw"), (c_void_p, "dx dweight dbias"), (c_int64, "ld_dx ld_dweight"),
        (c_int32, "dx_dtype dweight_dtype accumulate_dx accumulate_dweight allow_tf32 reserved_flag"),
        (c_void_p, "statistics"), (c_int64, "plan_vocab"), (c_void_p, "workspace"),
        (c_size_t, "workspace_size_bytes workspace_budget_bytes"), (c_uint64 * 4, "reserved"))


class CrossEntropyArgs(ctypes.Structure):
    _fields_ = fields(
        (c_size_t, "struct_size"), (Loss, "loss"), (c_void_p, "logits"), (c_int64, "ld"), (c_void_p, "dlogits"),
        (c_int64, "ld_dlogits"), (c_void_p, "statistics workspace"), (c_size_t, "workspace_size_bytes"),
        (c_uint64 * 4, "reserved"))


class LossCountArgs(ctypes.Structure):
    _fields_ = fields((c_size_t, "struct_size"), (Loss, "loss"), (c_int32, "accumulate reserved_flag"),
                      (c_uint64 * 4, "reserved"))


class LossStatisticsArgs(ctypes.Structure):
    _fields_ = fields((c_size_t, "struct_size"), (Loss, "loss"), (c_void_p, "sets"), (c_int64, "count rows"),
                      (c_void_p, "statistics"), (c_uint64 * 4, "reserved"))


def args(struct, **values):
    made = struct(struct_size=ctypes.sizeof(struct))
    for name, value in values.items():
        target, field = (made.loss, name[5:]) if name.startswith("loss_") else (made, name)
        if field not in dict(type(target)._fields_):
            raise AttributeError(f"{type(target).__name__} has no field {field}")
        setattr(target, field, value)
    return made


class Error(RuntimeError):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def load(path):
    lib = ctypes.CDLL(path)
    lib.xce_last_error.restype = lib.xce_version.restype = lib.xce_status_string.restype = c_char_p
    lib.xce_context_destroy.restype = None
    linear, plain = POINTER(LinearCrossEntropyArgs), POINTER(CrossEntropyArgs)
    signatures = {"xce_context_create_cpu": [c_int32, POINTER(c_void_p)], "xce_loss_count": [c_void_p, c_void_p],
                  "xce_context_create_cuda": [c_int32, POINTER(c_void_p)], "xce_context_destroy": [c_void_p],
                  "xce_context_set_stream": [c_void_p, c_void_p], "xce_loss_prepare": [c_void_p, c_int32],
                  "xce_context_set_tuning": [c_void_p, c_int32],
                  "xce_linear_cross_entropy_begin": [c_void_p, linear, c_int64, c_void_p],
                  "xce_linear_cross_entropy_finish": [c_void_p, linear, c_int64, c_void_p],
                  "xce_linear_cross_entropy_chunks": [c_void_p, linear, POINTER(c_int64), POINTER(c_int64)]}
    for op, struct in (("linear_cross_entropy", linear), ("cross_entropy", plain)):
        signatures[f"xce_{op}_workspace_bytes"] = [c_void_p, c_int, struct, POINTER(c_size_t)]
        signatures[f"xce_{op}_prepare"] = [c_void_p, c_int, struct]
        for call in ("forward", "backward", "forward_backward"):
            signatures[f"xce_{op}_{call}"] = [c_void_p, struct]
    for name, kinds in signatures.items():
        getattr(lib, name).argtypes = kinds
    return lib


class Context:
    """A context on "cpu" (threads: 0 for all) or a CUDA device's index. Its calls are methods, without the xce_."""

    def __init__(self, lib, device, threads=0):
        self.lib, self.handle = lib, c_void_p()
        if device == "cpu":
            self.check(lib.xce_context_create_cpu(threads, byref(self.handle)))
        else:
            self.check(lib.xce_context_create_cuda(device, byref(self.handle)))

    def __del__(self):
        self.lib.xce_context_destroy(self.handle)

    def check(self, status):
        if status:
            raise Error(status, self.lib.xce_last_error().decode())

    def workspace_bytes(self, op, what, call):
        size = c_size_t()
        self.check(getattr(self.lib, f"xce_{op}_workspace_bytes")(self.handle, what, byref(call), byref(size)))
        return size.value

    def __getattr__(self, name):
        function = getattr(self.lib, f"xce_{name}")

        def call(*words):
            words = (byref(word) if isinstance(word, ctypes.Structure) else word for word in words)
            self.check(function(self.handle, *words))

        setattr(self, name, call)
        return call

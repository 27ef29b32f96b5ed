#!/usr/bin/env python3
"""Checks the rules that keep the tree readable: who may include whom, which name may occur where, tests, file sizes.

  check_tree.py [ROOT]   prints "file:line: what is wrong" per violation; exit status 1 when there is one
"""
import pathlib
import re
import sys

# The folders of src in include order: each may use those before it, and kernels.
SRC_ORDER = ["core", "dist", "data", "io", "autograd", "ops", "model", "train", "cli"]
# An op includes no other op, but for these: op -> ops it may include.
OP_USES = {
    "adamw": {"step_control"},  # reads the rate and the clip factor that step_control decided
    "take_slot": {"step_control"},  # the step chooses the slot
    "linear_cross_entropy": {"linear", "cross_entropy"},  # shares the arithmetic of a row of logits
    "c_api": {"linear_cross_entropy", "cross_entropy"},  # the losses' public face
}
# Headers without a test file of their own name -> the test file that covers them.
TESTED_BY = {
    "kernels/c_api/arguments.h": "tests/capi/bad_calls_test.cpp",
    "kernels/c_api/context.h": "tests/capi/threads_test.cpp",
    "kernels/c_api/failure.h": "tests/capi/bad_calls_test.cpp",
}

MAX_LINES = 400
MAX_COLUMNS = 120  # of scripts; clang-format minds the C++ files
FOLDERS = ["kernels", "src", "tests", "tools", "configs", "examples", ".ci"]
CPP = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
CODE = CPP | {".py", ".sh"}
TEXT = CODE | {".md", ".yaml", ".json", ".txt", ".cmake"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
COMMENT_OR_LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cupti|nccl|nvtx)\w*(\.h|/)")


def outside(*places):
    """A test of paths: true outside these folders and files; a name without a folder is a file anywhere."""
    return lambda path: not any(path.as_posix().startswith(place) if "/" in place else path.name == place
                                for place in places)


def inside(*folders):
    return lambda path: path.as_posix().startswith(folders)


# Names in kernels/ and src/ that are wrong where `where` is true of the path: (pattern, where, message).
NAMES = [
    (re.compile(r"\b(nccl[A-Z]|NCCL_)\w*"), outside("comm_nccl.cpp"), "NCCL belongs into comm_nccl.cpp alone"),
    (re.compile(r"\b(cudnn[A-Z_]|CUDNN_)\w*"), outside("sdpa_cudnn.cpp"), "cuDNN belongs into sdpa_cudnn.cpp alone"),
    (re.compile(r"\bMPI_\w+"), outside("comm_mpi.cpp"), "MPI belongs into comm_mpi.cpp alone"),
    (re.compile(r"\bXCE_WITH_CUDA\b"),
     outside("kernels/base/exec.h", "src/core/device.cpp", "src/dist/communicator.cpp"),
     "XCE_WITH_CUDA belongs into exec.h and the two factories; elsewhere CMake chooses files"),
    (re.compile(r"\b(std::cout|std::cerr|std::clog|v?f?printf|f?puts|perror|spdlog)\b"),
     inside("kernels/"), "kernels do not print"),
    (re.compile(r"(?:\bstd::|(?<!\w)::|(?<![\w.>:])(?<!void ))(exit|_exit|_Exit|quick_exit|abort|terminate)\s*\("),
     outside("src/cli/"), "only the command line ends the process"),
]


def without_comments(text):
    """The text with comments and literals blanked, lines kept."""
    return COMMENT_OR_LITERAL.sub(lambda match: "\n" * match.group().count("\n"), text)


class Checker:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        found = [path for folder in FOLDERS for path in (self.root / folder).rglob("*")] + list(self.root.glob("*"))
        self.files = sorted(path.relative_to(self.root) for path in found if path.is_file() and path.suffix != ".pyc")
        headers = [path for path in self.files if path.parts[0] == "kernels" and path.suffix == ".h"]
        # An op is a header right in kernels/, or a folder of kernels/ with a header of its own name.
        self.ops = {path.stem for path in headers if len(path.parts) == 2}
        self.ops |= {path.stem for path in headers if path.parts[1:-1] == (path.stem,)}
        self.errors = []

    def error(self, path, line, message):
        self.errors.append(f"{path.as_posix()}:{line}: {message}")

    def run(self):
        for path in self.files:
            if path.suffix not in TEXT and path.parts[0] != ".ci":
                continue
            text = (self.root / path).read_bytes().decode("utf-8")
            self.check_text(path, text)
            if path.suffix in CPP:
                self.check_includes(path, text)
                if path.parts[0] in ("kernels", "src"):
                    self.check_names(path, without_comments(text))
                    self.check_tested(path)
        return self.errors

    def check_text(self, path, text):
        code = path.suffix in CODE or path.parts[0] == ".ci"
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if "\t" in line:
                self.error(path, number, "tab")
            if line != line.rstrip():
                self.error(path, number, "space at the end of the line")
            if code and path.suffix not in CPP and len(line) > MAX_COLUMNS:
                self.error(path, number, f"{len(line)} columns, at most {MAX_COLUMNS}")
        if text and lines[-1]:
            self.error(path, len(lines), "no newline at the end of the file")
        if code and len(lines) - 1 > MAX_LINES:
            self.error(path, MAX_LINES + 1, f"{len(lines) - 1} lines, at most {MAX_LINES}")

    def check_names(self, path, text):
        for pattern, where, message in NAMES:
            for match in pattern.finditer(text) if where(path) else ():
                self.error(path, text.count("\n", 0, match.start()) + 1, f"{match.group().strip('( ')}: {message}")

    def check_includes(self, path, text):
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            quoted, system = match.groups()
            if system:
                message = self.system_include_error(path, system)
            else:
                message = self.include_error(path, quoted)
            if message:
                self.error(path, line, f"#include {quoted or system}: {message}")

    @staticmethod
    def system_include_error(path, system):
        cuda = path.suffix in (".cu", ".cuh") or path.name in ("cuda_check.h", "comm_nccl.cpp", "sdpa_cudnn.cpp")
        if CUDA_HEADER.match(system) and not cuda and not path.name.endswith("_cuda.cpp"):
            return "this file has to compile without CUDA installed"
        if system == "mpi.h" and path.name != "comm_mpi.cpp":
            return "MPI belongs into comm_mpi.cpp alone"
        return None

    def include_error(self, path, quoted):
        target = next((base / quoted for base in (pathlib.Path(), pathlib.Path("kernels/include"))
                       if (self.root / base / quoted).is_file()), None)
        if target is None:
            return "no such file from the root of the tree"
        if target.suffix == ".cuh" and path.suffix not in (".cu", ".cuh"):
            return "a .cuh file is for .cu and .cuh files"
        if path.parts[0] == "kernels":
            return self.kernels_include_error(path, target)
        if path.parts[0] == "src":
            return self.src_include_error(path, target)
        return None

    def kernels_include_error(self, path, target):
        if target.parts[0] != "kernels":
            return "kernels use kernels alone"
        below = {"include": ("include",), "base": ("base",), "cpu": ("base", "cpu"), "cuda": ("base", "cuda")}
        folder, target_folder = path.parts[1], target.parts[1]
        if folder in below:
            allowed = target_folder in below[folder]
            return None if allowed else f"kernels/{folder} uses only " + " and ".join(below[folder])
        if target_folder in below:
            return None
        op, used = self.op_of(path), self.op_of(target)
        if used != op and used not in OP_USES.get(op, ()):
            return f"op {op} includes op {used}"
        return None

    def op_of(self, path):
        if len(path.parts) > 2:
            return path.parts[1]
        owners = [op for op in self.ops if path.stem == op or path.stem.startswith(op + "_")]
        return min(owners, key=len, default=path.stem)

    @staticmethod
    def src_include_error(path, target):
        if target.parts[0] == "kernels":
            return None
        folder = path.parts[1]
        if folder not in SRC_ORDER:
            return f"src/{folder} has no place in the include order"
        if target.parts[0] != "src" or target.parts[1] not in SRC_ORDER[:SRC_ORDER.index(folder) + 1]:
            return f"src/{folder} comes before it in the include order"
        return None

    def check_tested(self, path):
        """An op's header, and any header beside a source file of its name, has a test of its name."""
        sources = {path.with_name(path.stem + end) for end in (".cpp", "_cpu.cpp")}
        is_op = path.parts[0] == "kernels" and path.stem in self.ops
        if path.suffix != ".h" or not (is_op or sources & set(self.files)):
            return
        folder = "kernels" if path.parts[0] == "kernels" else path.parts[1]
        test = pathlib.Path(TESTED_BY.get(path.as_posix(), f"tests/{folder}/{path.stem}_test.cpp"))
        if test not in self.files:
            self.error(path, 1, f"no {test.as_posix()}")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    errors = Checker(root).run()
    for error in errors:
        print(error)
    print(f"check_tree: {len(errors)} violations" if errors else "check_tree: every rule holds")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

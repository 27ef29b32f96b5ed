#!/usr/bin/env python3
"""Each rule of tools/check_tree.py on a small tree that obeys them all: one violation at a time has to be found."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_tree  # noqa: E402

GOOD_TREE = {
    "CMakeLists.txt": "project(fake)\n",
    "kernels/base/exec.h": "#pragma once\n// printf and exit() in a comment are nobody's business\n",
    "kernels/base/cuda_check.h": "#pragma once\n#include <cuda_runtime.h>\n",
    "kernels/cpu/vec.h": '#pragma once\n#include "kernels/base/exec.h"\n',
    "kernels/cuda/mma.cuh": "#pragma once\n",
    "kernels/cuda/sdpa/sdpa_cudnn.cpp": "#include <cudnn_frontend.h>\ncudnnHandle_t handle;\n",
    "kernels/include/xce/xce.h": "#pragma once\n",
    "kernels/adamw.h": '#pragma once\n#include "kernels/step_control.h"\n',
    "kernels/linear.h": '#pragma once\n#include "kernels/base/exec.h"\n',
    "kernels/linear_cpu.cpp": '#include <vector>\n#include "kernels/cpu/vec.h"\n#include "kernels/linear.h"\n',
    "kernels/linear_cuda.cu": '#include <cuda_bf16.h>\n#include "kernels/cuda/mma.cuh"\n#include "kernels/linear.h"\n',
    "kernels/linear_cross_entropy/linear_cross_entropy.h": "#pragma once\n",
    "kernels/linear_cross_entropy/forward_cpu.cpp":
        '#include "kernels/linear.h"\n#include "kernels/linear_cross_entropy/linear_cross_entropy.h"\n',
    "kernels/linear_cross_entropy/c_api.cpp": '#include "xce/xce.h"\nchar text[] = "puts(1) //";\n',
    "kernels/step_control.h": "#pragma once\n",
    "src/core/log.h": "#pragma once\n",
    "src/core/log.cpp": '#include "src/core/log.h"\nint size = snprintf(nullptr, 0, "x");\n',
    "src/dist/communicator.h": "#pragma once\nstruct Communicator { virtual void abort() = 0; };\n",
    "src/dist/comm_mpi.cpp": '#include <mpi.h>\n#include "src/dist/communicator.h"\nint rank = MPI_Init(0, 0);\n',
    "src/dist/comm_nccl.cpp": "#include <nccl.h>\nncclComm_t comm = NCCL_UNIQUE;\n",
    "src/ops/ops.h": '#pragma once\n#include "kernels/linear.h"\n#include "src/core/log.h"\n',
    "src/cli/main.cpp": '#include "src/ops/ops.h"\nint main() { std::exit(2); }\n',
    "tests/kernels/adamw_test.cpp": '#include "kernels/adamw.h"\n',
    "tests/kernels/linear_test.cpp": '#include "kernels/linear.h"\n',
    "tests/kernels/linear_cross_entropy_test.cpp": '#include "tests/support/compare.h"\n',
    "tests/kernels/step_control_test.cpp": '#include "kernels/step_control.h"\n',
    "tests/core/log_test.cpp": '#include "src/core/log.h"\n',
    "tests/support/compare.h": "#pragma once\n",
    "tools/plot.py": "print(1)\n",
}


class CheckTreeTest(unittest.TestCase):
    def errors(self, changes, removed=()):
        """What the checker finds in the good tree with some files replaced, added or removed."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD_TREE, **changes}.items():
                if name not in removed:
                    path = pathlib.Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
            return check_tree.Checker(folder).run()

    def expect(self, name, line, message, text):
        """`text` as the content of file `name` gives exactly one error, at that line, with that message in it."""
        errors = self.errors({name: text})
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(f"{name}:{line}: "), errors)
        self.assertIn(message, errors[0])

    def expect_added(self, name, message, added):
        """The same for a text added to a file of the good tree, at its last line."""
        text = GOOD_TREE[name] + added
        self.expect(name, text.count("\n"), message, text)

    def test_a_tree_that_obeys_has_no_errors(self):
        self.assertEqual(self.errors({}), [])

    def test_kernels_do_not_include_src(self):
        self.expect_added("kernels/linear_cpu.cpp", "kernels use kernels alone", '#include "src/core/log.h"\n')
        self.expect_added("kernels/linear_cpu.cpp", "kernels use kernels alone", '#include "tests/support/compare.h"\n')

    def test_kernels_base_and_cpu_know_no_op(self):
        self.expect_added("kernels/base/exec.h", "kernels/base uses only base", '#include "kernels/linear.h"\n')
        self.expect_added("kernels/base/exec.h", "kernels/base uses only base", '#include "kernels/cpu/vec.h"\n')
        self.expect_added("kernels/cpu/vec.h", "kernels/cpu uses only base and cpu", '#include "kernels/linear.h"\n')
        self.expect_added("kernels/include/xce/xce.h", "kernels/include uses only", '#include "kernels/linear.h"\n')

    def test_an_op_includes_no_other_op(self):
        self.expect_added("kernels/linear_cpu.cpp", "op linear includes op adamw", '#include "kernels/adamw.h"\n')
        self.expect_added("kernels/linear.h", "op linear includes op linear_cross_entropy",
                          '#include "kernels/linear_cross_entropy/linear_cross_entropy.h"\n')
        self.expect_added("kernels/linear_cross_entropy/c_api.cpp", "includes op adamw", '#include "kernels/adamw.h"\n')

    def test_src_folders_keep_their_order(self):
        self.expect_added("src/core/log.cpp", "src/core comes before", '#include "src/ops/ops.h"\n')
        self.expect_added("src/dist/communicator.h", "src/dist comes before", '#include "src/ops/ops.h"\n')
        self.expect_added("src/ops/ops.h", "src/ops comes before", '#include "tests/support/compare.h"\n')
        self.expect("src/misc/a.cpp", 1, "no place in the include order", '#include "src/core/log.h"\n')

    def test_includes_are_written_from_the_root(self):
        self.expect_added("src/core/log.cpp", "no such file", '#include "log.h"\n')
        self.expect_added("tests/core/log_test.cpp", "no such file", '#include "src/core/gone.h"\n')

    def test_cuda_stays_in_cuda_files(self):
        self.expect_added("kernels/linear.h", "without CUDA installed", "#include <cuda_runtime.h>\n")
        self.expect_added("src/core/log.cpp", "without CUDA installed", "#include <cublasLt.h>\n")
        self.expect_added("kernels/linear_cpu.cpp", "a .cuh file is for", '#include "kernels/cuda/mma.cuh"\n')
        self.expect_added("src/core/log.cpp", "XCE_WITH_CUDA", "int a = XCE_WITH_CUDA;\n")

    def test_cudnn_nccl_and_mpi_stay_in_their_files(self):
        self.expect_added("src/core/log.cpp", "cuDNN belongs", "int a = cudnnCreate;\n")
        self.expect_added("kernels/linear_cuda.cu", "cuDNN belongs", "int a = CUDNN_VERSION;\n")
        self.expect_added("src/core/log.cpp", "NCCL belongs", "int a = ncclSend;\n")
        self.expect_added("src/core/log.cpp", "NCCL belongs", "int a = NCCL_VERSION;\n")
        self.expect_added("src/dist/comm_nccl.cpp", "MPI belongs", "int a = MPI_COMM_WORLD;\n")
        self.expect_added("src/core/log.cpp", "MPI belongs", "#include <mpi.h>\n")

    def test_kernels_do_not_print(self):
        for word in ("std::cout << 1;", "std::cerr << 1;", 'printf("%d", 1);', 'fprintf(stderr, "a");', 'puts("a");',
                     'spdlog::info("a");', 'perror("a");'):
            self.expect_added("kernels/linear_cpu.cpp", "kernels do not print", f"void f() {{ {word} }}\n")

    def test_only_the_command_line_ends_the_process(self):
        for name in ("kernels/linear_cpu.cpp", "src/core/log.cpp"):
            for call in ("exit(1)", "std::exit(1)", "std::abort()", "abort()", "std::terminate()", "_exit(1)"):
                self.expect_added(name, "ends the process", f"void f() {{ {call}; }}\n")

    def test_each_header_with_code_has_a_test(self):
        for header, test in (("kernels/linear.h", "tests/kernels/linear_test.cpp"),
                             ("kernels/step_control.h", "tests/kernels/step_control_test.cpp"),
                             ("kernels/linear_cross_entropy/linear_cross_entropy.h",
                              "tests/kernels/linear_cross_entropy_test.cpp"),
                             ("src/core/log.h", "tests/core/log_test.cpp")):
            self.assertEqual(self.errors({}, removed=[test]), [f"{header}:1: no {test}"])
        self.assertEqual(self.errors({"kernels/cpu/vec.cpp": "\n"}),
                         ["kernels/cpu/vec.h:1: no tests/kernels/vec_test.cpp"])

    def test_a_table_names_the_test_of_a_header_that_has_none(self):
        before = dict(check_tree.TESTED_BY)
        self.addCleanup(lambda: (check_tree.TESTED_BY.clear(), check_tree.TESTED_BY.update(before)))
        check_tree.TESTED_BY["src/core/log.h"] = "tests/core/other_test.cpp"
        self.assertEqual(self.errors({"tests/core/other_test.cpp": "\n"}, removed=["tests/core/log_test.cpp"]), [])
        self.assertEqual(self.errors({}), ["src/core/log.h:1: no tests/core/other_test.cpp"])

    def test_text(self):
        self.expect_added("tools/plot.py", "tab", "\tprint(2)\n")
        self.expect_added("CMakeLists.txt", "space at the end", "project(b) \n")
        self.expect_added("src/core/log.cpp", "space at the end", "int a;\r\n")
        self.expect("tools/plot.py", 1, "no newline at the end", "print(1)")

    def test_sizes(self):
        lines = lambda count: "// x\n" * count  # noqa: E731
        self.assertEqual(self.errors({"src/cli/main.cpp": lines(400), "README.md": "x\n" * 900}), [])
        self.expect("src/cli/main.cpp", 401, "401 lines, at most 400", lines(401))
        self.expect(".ci/run", 401, "401 lines, at most 400", lines(401))
        self.assertEqual(self.errors({"tools/plot.py": "x" * 120 + "\n", "README.md": "x" * 300 + "\n"}), [])
        self.expect("tools/plot.py", 1, "121 columns, at most 120", "x" * 121 + "\n")


if __name__ == "__main__":
    unittest.main()

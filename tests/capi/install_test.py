#!/usr/bin/env python3
"""Installs the loss library from a build tree into a fresh prefix and uses it from nothing but that prefix.

  install_test.py BUILD_DIR SOURCE_DIR
Checks that libxce.so exports the functions of xce.h and nothing else, builds the C example by pkg-config (shared, and
static where the static libraries are there) and a C++ program by find_package (both), and runs them.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CXX_MAIN = r"""
#include <xce/xce.hpp>
#include <cmath>
#include <cstdio>
#include <vector>
int main() {
  std::vector<float> logits(4 * 16, 0.5f), dlogits(logits.size());
  std::vector<long> labels = {0, 5, 10, 15};
  float loss = 0;
  auto context = xce::api::Context::cpu(2);
  xce::api::CrossEntropy args;
  args.loss.rows = 4, args.loss.vocab = 16;
  args.loss.dtype = XCE_FLOAT32, args.loss.label_dtype = XCE_INT64;
  args.loss.labels = labels.data(), args.loss.loss = &loss;
  args.logits = logits.data(), args.dlogits = dlogits.data();
  xce::api::forward_backward(context, args);
  try {
    args.loss.label_smoothing = 2;
    xce::api::forward(context, args);
    return 2;
  } catch (const xce::api::Error& error) {
    std::printf("refused: %s\n", error.what());
    if (error.status() != XCE_ERROR_INVALID_ARGUMENT) return 3;
  }
  std::printf("loss %.4f\n", loss);
  return std::fabs(loss - std::log(16.0f)) > 1e-5f || std::fabs(dlogits[0] - (1 / 16.0f - 1) / 4) > 1e-6f;
}
"""
CMAKE_LISTS = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(xce 0.1 REQUIRED COMPONENTS shared static)
foreach(kind xce xce_static)
  add_executable(use_${kind} main.cpp)
  target_compile_features(use_${kind} PRIVATE cxx_std_17)
  target_compile_options(use_${kind} PRIVATE -Wall -Wextra -Werror)
  target_link_libraries(use_${kind} PRIVATE xce::${kind})
endforeach()
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}exit status {done.returncode}")
    return done.stdout


def check_exports(library, header):
    symbols = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    declared = set(re.findall(r"^XCE_API [\w* ]*?\b(xce_\w+)\(", header.read_text(), re.MULTILINE))
    if not declared or symbols != declared:
        sys.exit(f"exported but not declared: {sorted(symbols - declared)}, "
                 f"declared but not exported: {sorted(declared - symbols)}")
    print(f"exports: the {len(symbols)} functions of xce.h")


def main():
    build, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        prefix = scratch / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        library = next(prefix.glob("lib*/libxce.so"))
        check_exports(library, prefix / "include/xce/xce.h")

        paths = {"PKG_CONFIG_PATH": str(library.parent / "pkgconfig"), "LD_LIBRARY_PATH":
                 os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")]))}
        env = {**os.environ, **paths}
        flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", source / "examples/c_minimal.c", "-lm"]
        for kind, options in (("shared", []), ("static", ["--static"])):
            words = run("pkg-config", "--cflags", "--libs", *options, "xce", env=env).split()
            if kind == "static":  # of the two forms in the prefix the static one
                words = [str(library.with_name("libxce.a")) if word == "-lxce" else word for word in words]
            run("cc", *flags[:-2], *flags[-2:], *words, "-o", scratch / kind, env=env)
            print(f"C, pkg-config, {kind}:", run(scratch / kind, env=env).splitlines()[0])
        if "libxce" in run("ldd", scratch / "static"):
            sys.exit("the static program needs libxce.so")

        consumer = scratch / "consumer"
        consumer.mkdir()
        (consumer / "main.cpp").write_text(CXX_MAIN)
        (consumer / "CMakeLists.txt").write_text(CMAKE_LISTS)
        run("cmake", "-S", consumer, "-B", consumer / "build", f"-DCMAKE_PREFIX_PATH={prefix}", env=env)
        run("cmake", "--build", consumer / "build", env=env)
        for kind in ("use_xce", "use_xce_static"):
            print(f"C++, find_package, {kind}:", run(consumer / "build" / kind).splitlines()[-1])


if __name__ == "__main__":
    main()

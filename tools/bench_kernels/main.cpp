// Every op on a CPU or a GPU: first its results against fp64, then its time, and that beside what the device can do: a
// large product by the same library for products, a copy for all that moves bytes.
//
//   bench_kernels [--device cpu|cuda] [--shapes demo|1b] [--dtype fp32|bf16] [--threads N] [--only TEXT] [--ms N]
//                 [--json FILE]
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tools/bench_kernels/bench.h"

namespace {

using namespace xce;
using namespace xce::bench;

struct Options {
  std::string device = "cpu", shapes, dtype, only, json;
  int threads = 0;
  double sustained_ms = 250;
};

// The model of configs/demo-cpu.yaml.
Shapes demo() {
  return {.rows = 2048,
          .hidden = 128,
          .ffn = 384,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 32,
          .seq_len = 128,
          .vocab = 256,
          .parameters = 705408,
          .linears = {{128, 384}, {128, 128}, {128, 768}, {384, 128}, {128, 256}},
          .gemm_rows = 1024,
          .gemm_side = 1024,
          .copy_bytes = 1 << 20,
          .dtype = DType::kF32,
          .loss_rows = 512,
          .loss_vocabs = {256, 8192}};
}
// A Llama of 1.2 billion parameters; adamw and norm2 over a third of them.
Shapes one_billion() {
  return {.rows = 16384,
          .hidden = 2048,
          .ffn = 8192,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 64,
          .seq_len = 4096,
          .vocab = 131072,
          .parameters = 400'000'000,
          .linears = {{2048, 3072}, {2048, 2048}, {2048, 16384}, {8192, 2048}},
          .gemm_rows = 16384,
          .gemm_side = 8192,
          .copy_bytes = 1 << 30,
          .dtype = DType::kBf16,
          .loss_rows = 4096,
          .loss_vocabs = {32000, 50257, 128256, 262144}};
}

std::string one_of(const std::string& name, const std::string& value, const std::string& a, const std::string& b) {
  if (value != a && value != b) throw Error(ErrorCode::kUsage, str(name, " is ", a, " or ", b, ", not '", value, "'"));
  return value;
}

double positive(const std::string& name, const std::string& value) {
  char* end = nullptr;
  double number = std::strtod(value.c_str(), &end);
  if (*end || !(number >= 1) || number > 1e5)
    throw Error(ErrorCode::kUsage, str(name, " is a number from 1 to 1e5, not '", value, "'"));
  return number;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) throw Error(ErrorCode::kUsage, name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--device")
      o.device = one_of(name, value, "cpu", "cuda");
    else if (name == "--shapes")
      o.shapes = one_of(name, value, "demo", "1b");
    else if (name == "--dtype")
      o.dtype = one_of(name, value, "fp32", "bf16");
    else if (name == "--threads")
      o.threads = static_cast<int>(positive(name, value));
    else if (name == "--only")
      o.only = value;
    else if (name == "--ms")
      o.sustained_ms = positive(name, value);
    else if (name == "--json")
      o.json = value;
    else
      throw Error(ErrorCode::kUsage, "unknown option " + name);
  }
  if (o.shapes.empty()) o.shapes = o.device == "cuda" ? "1b" : "demo";
  return o;
}

void run_jobs(const Options& o) {
  auto device = o.device == "cuda" ? make_cuda_device() : make_cpu_device(o.threads);
  Shapes shapes = o.shapes == "1b" ? one_billion() : demo();
  if (!o.dtype.empty()) shapes.dtype = o.dtype == "bf16" ? DType::kBf16 : DType::kF32;
  Bench jobs(*device, shapes, o.only, o.sustained_ms);
  std::printf("%s\n", device->describe().c_str());
  jobs.measure_ceilings();
  linear_jobs(jobs);
  attention_jobs(jobs);
  row_jobs(jobs);
  embedding_jobs(jobs);
  parameter_jobs(jobs);
  loss_jobs(jobs);
  jobs.measure_ceilings();  // whether the device kept its pace
  if (o.json.empty()) return;
  std::ofstream file(o.json);
  file << jobs.record().dump(1) << "\n";
  if (!file.flush()) throw Error(ErrorCode::kDisk, "cannot write " + o.json);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run_jobs(parse(argc, argv));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}

// The losses beside what they are made of, on a CPU or a GPU: forward_backward of linear cross-entropy beside its three
// matrix products alone, plain cross-entropy beside a copy. Results are checked against fp64 first; then, round by
// round, each contender in turn, the order rotating, runs once (on a GPU: back to back for --hold-ms, at the clocks
// that its own heat allows).
//
//   bench_loss [--device cpu|cuda] [--shape N,H,V]... [--rows N] [--hidden H] [--vocab V] [--dtype fp32|bf16|fp16]
//              [--tf32] [--narrow] [--budget-mib M,M...]
//              [--with none|all|bias,class,token,smoothing,zloss,softcap,scale,entropy,accuracy,probabilities]...
//              [--rounds R] [--hold-ms T] [--threads T] [--untuned] [--plans] [--json]
//   bench_loss --plain [--shape N,V]... ...
#include <algorithm>
#include <cstdio>

#include "kernels/cpu/blas_core.h"
#include "tools/bench_loss/problem.h"

namespace {

using namespace xce;
using namespace xce::bench;

struct Contender {
  std::string name;
  std::function<void()> call;
  double work = 0;  // FLOP, or bytes that have to move
  nlohmann::json facts = nlohmann::json::object();
  std::string text = "";
  std::vector<double> ms = {}, ratios = {}, cpu_ratios = {};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
std::string spread(const char* format, const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  char text[96];
  std::snprintf(text, sizeof(text), format, median(values), *low, *high);
  return text;
}

// The first is what the others are set beside.
void race(LossDevice& device, const LossBenchOptions& o, std::vector<Contender>& all) {
  for (int round = 0; round <= o.rounds; ++round) {  // the first round only warms up
    std::vector<Sample> samples(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t turn = (i + static_cast<size_t>(round)) % all.size();
      samples[turn] = device.time(all[turn].call, o.hold_ms);
    }
    if (round == 0) continue;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].ms.push_back(samples[i].ms);
      all[i].ratios.push_back(samples[i].ms / samples[0].ms);
      if (samples[0].cpu_ms > 0) all[i].cpu_ratios.push_back(samples[i].cpu_ms / samples[0].cpu_ms);
    }
  }
}

void report(LossDevice& device, const LossBenchOptions& o, const LossShape& s, const std::vector<Contender>& all) {
  const double least = *std::min_element(all[0].ms.begin(), all[0].ms.end());
  const char* unit = o.plain ? "GB/s" : "GFLOP/s";
  if (!o.json)
    std::printf("%s\nN %lld H %lld V %lld %s%s\n", device.memory().describe().c_str(), static_cast<long long>(s.rows),
                static_cast<long long>(s.hidden), static_cast<long long>(s.vocab), name_of(o.dtype),
                o.tf32 ? ", TF32" : "");
  for (const Contender& c : all) {
    const double ms = median(c.ms), rate = c.work / ms * 1e-6, low = *std::min_element(c.ms.begin(), c.ms.end());
    // Of plain cross-entropy: the share of a copy's bandwidth.
    const double share = (c.work / ms) / (all[0].work / median(all[0].ms));
    if (o.json) {
      nlohmann::json record = {{"device", device.memory().describe()},
                               {"loss", o.plain ? "cross_entropy" : "linear_cross_entropy"},
                               {"rows", s.rows},
                               {"hidden", s.hidden},
                               {"vocab", s.vocab},
                               {"dtype", name_of(o.dtype)},
                               {"tf32", o.tf32},
                               {"threads", o.threads},
                               {"name", c.name},
                               {"time_ms", ms},
                               {"time_ms_min", low},
                               {"time_ms_max", *std::max_element(c.ms.begin(), c.ms.end())},
                               {o.plain ? "gbytes_per_s" : "gflops", rate},
                               {"ratio", median(c.ratios)},
                               {"ratio_of_minima", low / least}};
      if (o.plain) record["share_of_copy"] = share;
      if (!c.cpu_ratios.empty()) record["cpu_ratio"] = median(c.cpu_ratios);
      record.update(c.facts);
      std::printf("%s\n", record.dump().c_str());
      continue;
    }
    std::printf("  %-44s %s ms  %8.1f %s", c.name.c_str(), spread("%8.3f [%.3f .. %.3f]", c.ms).c_str(), rate, unit);
    if (o.plain) {
      std::printf("  share of the copy's %.3f", share);
    } else if (&c != &all[0]) {
      std::printf("  ratio %s, of minima %.3f", spread("%.3f [%.3f .. %.3f]", c.ratios).c_str(), low / least);
      if (!c.cpu_ratios.empty()) std::printf(", of CPU times %.3f", median(c.cpu_ratios));
    }
    std::printf("%s\n", c.text.c_str());
  }
  std::fflush(stdout);
}

std::string error_text(const LossErrors& e, bool plain) {
  char text[96];
  if (plain)
    std::snprintf(text, sizeof(text), "  errors %.1e %.1e", e.row_loss, e.dlogits);
  else
    std::snprintf(text, sizeof(text), "  errors %.1e %.1e %.1e", e.row_loss, e.dx, e.dweight);
  return text;
}

void race_linear(LossDevice& device, const LossBenchOptions& o, const LossShape& s) {
  LossProblem problem(device, s, o);
  const double flops = 6 * static_cast<double>(s.rows) * static_cast<double>(s.hidden) * static_cast<double>(s.vocab);
  std::vector<Contender> all;
  auto add = [&](const Exec& exec, const Features& f, int64_t mib) {
    auto args = problem.linear(f, mib ? static_cast<size_t>(mib) << 20 : problem.budget_of_rows(4096));
    problem.give_workspace(exec, args);
    const bool tuned = &exec == &device.exec();
    if (tuned) device.tune([&] { run(exec, args); });
    args.grad.accumulate_dweight = false;
    run(exec, args);
    const LossErrors errors = problem.verify(f);
    // A GPU's products add to a main gradient, as the baseline's do; a CPU's overwrite it, as the baseline's.
    args.grad.accumulate_dweight = o.device == "cuda" && !args.grad.dweight_in_dtype;
    const int64_t count = std::visit([&](const auto& on) { return chunks(on, args).count; }, exec);
    Contender c{.name = str(mib ? str(mib, " MiB") : "4096 rows", tuned ? "" : ", untuned", ", with ", f.name),
                .call = [&exec, args] { run(exec, args); },
                .work = flops,
                .facts = errors.json()};
    c.facts.update({{"with", f.name},
                    {"budget_mib", mib},
                    {"chunks", count},
                    {"workspace_bytes", args.workspace.size_bytes},
                    {"blas_core", cpu::blas_core()}});
    c.text = str(", ", count, " chunks, ", args.workspace.size_bytes >> 20, " MiB", error_text(errors, false));
    all.push_back(std::move(c));
  };
  all.push_back(
      {.name = "three products", .call = device.three_products(s, o.dtype, o.tf32, problem.products()), .work = flops});
  for (const Features& f : o.features)
    for (int64_t mib : o.budgets_mib) add(device.exec(), f, mib);
  if (o.untuned && device.untuned_exec()) add(*device.untuned_exec(), o.features[0], o.budgets_mib[0]);
  if (o.plans) std::fprintf(stderr, "%s", device.plans_text().c_str());
  race(device, o, all);
  report(device, o, s, all);
}

void race_plain(LossDevice& device, const LossBenchOptions& o, const LossShape& s) {
  const size_t copy_bytes = o.device == "cuda" ? size_t{1} << 30 : size_t{128} << 20;
  LossProblem problem(device, s, o);
  void* from = device.memory().allocate(copy_bytes);
  void* to = device.memory().allocate(copy_bytes);
  device.memory().set_bytes(from, 1, copy_bytes);
  std::vector<Contender> all;
  all.push_back({.name = "copy",
                 .call = [&device, to, from, copy_bytes] { device.memory().copy(to, from, copy_bytes); },
                 .work = 2 * static_cast<double>(copy_bytes)});
  const double logits = static_cast<double>(s.rows * s.vocab) * static_cast<double>(size_of(o.dtype));
  const Exec& exec = device.exec();
  for (const Features& f : o.features) {
    auto both = problem.plain(f);
    problem.give_workspace(exec, both);
    CrossEntropyForward forward{.in = both.in, .options = both.options, .out = both.out};
    problem.give_workspace(exec, forward);
    CrossEntropyBackward backward{.in = both.in,
                                  .options = both.options,
                                  .offset = both.out.offset,
                                  .logsum = both.out.logsum,
                                  .upstream = {},
                                  .dlogits = both.dlogits};
    problem.give_workspace(exec, backward);
    // The probabilities are read as the logits are.
    const double targets = f.probabilities ? 4 * static_cast<double>(s.rows * s.vocab) : 0;
    auto add = [&](const char* pass, auto args, double work) {
      run(exec, args);
      all.push_back({.name = str(pass, ", with ", f.name), .call = [&exec, args] { run(exec, args); }, .work = work});
      all.back().facts = {{"with", f.name}, {"pass", pass}};
    };
    add("forward_backward", both, 2 * logits + targets);
    LossErrors errors = problem.verify(f);
    all.back().facts.update(errors.json()), all.back().text = error_text(errors, true);
    device.memory().set_bytes(both.dlogits, 0xFF, static_cast<size_t>(logits));
    add("forward", forward, logits + targets);
    add("backward", backward, 2 * logits + targets);
    errors = problem.verify(f);
    all.back().facts.update(errors.json()), all.back().text = error_text(errors, true);
  }
  race(device, o, all);
  report(device, o, s, all);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const LossBenchOptions o = parse_loss_bench(argc, argv);
    auto device = o.device == "cuda" ? make_cuda_loss_device() : make_cpu_loss_device(o.threads);
    for (const LossShape& shape : o.shapes) {
      o.plain ? race_plain(*device, o, shape) : race_linear(*device, o, shape);
      device->memory().release_all();
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_loss: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}

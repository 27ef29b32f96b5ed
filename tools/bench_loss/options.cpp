#include "tools/bench_loss/options.h"

#include <cstdlib>
#include <utility>

#include "kernels/base/check.h"

namespace xce::bench {
namespace {

[[noreturn]] void usage(const std::string& what) {
  throw Error(ErrorCode::kUsage, what);
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    all.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return all;
}

double number(const std::string& name, const std::string& text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(value >= least) || value > 1e12)
    usage(str(name, " is a number of at least ", least, ", not '", text, "'"));
  return value;
}
int64_t integer(const std::string& name, const std::string& text, int64_t least) {
  return static_cast<int64_t>(number(name, text, static_cast<double>(least)));
}

Features features(const std::string& text) {
  Features f;
  f.name = text;
  const std::pair<const char*, bool*> names[] = {{"bias", &f.bias},           {"class", &f.class_weights},
                                                 {"token", &f.token_weights}, {"smoothing", &f.smoothing},
                                                 {"zloss", &f.z_loss},        {"softcap", &f.softcap},
                                                 {"entropy", &f.entropy},     {"accuracy", &f.accuracy},
                                                 {"scale", &f.scale},         {"probabilities", &f.probabilities}};
  for (const std::string& word : words(text)) {
    bool known = word == "none" || word == "all";
    for (auto [name, field] : names) {
      const bool of_all = std::string(name) != "scale" && std::string(name) != "probabilities";
      if (word == name || (word == "all" && of_all)) *field = known = true;
    }
    if (!known)
      usage(
          str("--with takes none, all, bias, class, token, smoothing, zloss, softcap, entropy, accuracy, scale and "
              "probabilities, not '",
              word, "'"));
  }
  return f;
}

LossShape shape(const std::string& text, bool plain) {
  const std::vector<std::string> sides = words(text);
  if (sides.size() != (plain ? 2 : 3)) usage(str("--shape is ", plain ? "N,V" : "N,H,V", ", not '", text, "'"));
  auto side = [&](size_t i) { return integer("a side of --shape", sides[i], 1); };
  return plain ? LossShape{side(0), 1, side(1)} : LossShape{side(0), side(1), side(2)};
}

DType dtype(const std::string& text) {
  for (DType type : {DType::kF32, DType::kBf16, DType::kF16})
    if (text == name_of(type)) return type;
  usage(str("--dtype is fp32, bf16 or fp16, not '", text, "'"));
}

void defaults(LossBenchOptions& o, bool own_dtype) {
  const bool gpu = o.device == "cuda";
  if (!own_dtype && gpu) o.dtype = DType::kBf16;
  if (o.rounds == 0) o.rounds = gpu ? 8 : 15;
  if (o.features.empty()) o.features.push_back({});
  for (Features& f : o.features) {  // given logits have their bias already
    if (o.plain && f.bias && f.name != "all") usage("--plain has no bias");
    if (o.plain) f.bias = false;
  }
  if (o.budgets_mib.empty()) o.budgets_mib = gpu ? std::vector<int64_t>{0, 1024, 256} : std::vector<int64_t>{128, 64};
  if (!o.shapes.empty()) return;
  if (o.plain && gpu)
    o.shapes = {{4096, 1, 32000}, {4096, 1, 128256}, {4096, 1, 131072}, {4096, 1, 262144}};
  else if (o.plain)
    o.shapes = {{512, 1, 32000}, {512, 1, 131072}};
  else if (gpu)
    o.shapes = {
        {2048, 2048, 131072}, {4096, 4096, 128256}, {8192, 2048, 128256}, {8192, 4096, 128256}, {8192, 2304, 256000}};
  else
    o.shapes = {{512, 256, 131072}};
}

}  // namespace

LossBenchOptions parse_loss_bench(int argc, char** argv) {
  LossBenchOptions o;
  LossShape sides{512, 256, 131072};
  bool by_sides = false, own_dtype = false;
  std::vector<std::string> shapes;
  const std::pair<const char*, bool*> flags[] = {{"--json", &o.json},   {"--untuned", &o.untuned},
                                                 {"--plans", &o.plans}, {"--plain", &o.plain},
                                                 {"--tf32", &o.tf32},   {"--narrow", &o.narrow}};
  const std::pair<const char*, int64_t*> side_names[] = {
      {"--rows", &sides.rows}, {"--hidden", &sides.hidden}, {"--vocab", &sides.vocab}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    bool flag = false;
    for (auto [word, field] : flags)
      if (name == word) *field = flag = true;
    if (flag) continue;
    if (i + 1 >= argc) usage(name + " needs a value, or is not known");
    const std::string value = argv[++i];
    bool side = false;
    for (auto [word, field] : side_names)
      if (name == word) *field = integer(name, value, 1), side = by_sides = true;
    if (side) continue;
    if (name == "--device") {
      if (value != "cpu" && value != "cuda") usage("--device is cpu or cuda, not '" + value + "'");
      o.device = value;
    } else if (name == "--shape") {
      shapes.push_back(value);
    } else if (name == "--with") {
      o.features.push_back(features(value));
    } else if (name == "--budget-mib") {
      for (const std::string& word : words(value)) o.budgets_mib.push_back(integer(name, word, 0));
    } else if (name == "--dtype") {
      o.dtype = dtype(value), own_dtype = true;
    } else if (name == "--rounds") {
      o.rounds = static_cast<int>(integer(name, value, 1));
    } else if (name == "--threads") {
      o.threads = static_cast<int>(integer(name, value, 1));
    } else if (name == "--hold-ms") {
      o.hold_ms = number(name, value, 1);
    } else {
      usage("unknown option " + name);
    }
  }
  for (const std::string& text : shapes) o.shapes.push_back(shape(text, o.plain));
  if (by_sides) o.shapes.push_back({sides.rows, o.plain ? 1 : sides.hidden, sides.vocab});
  defaults(o, own_dtype);
  return o;
}

}  // namespace xce::bench

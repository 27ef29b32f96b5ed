// The algorithms chosen for matrix products as text, from which another process chooses the same ones:
//   xce gemm plans 2
//   machine <GPU, its compute capability and size, cuBLASLt's version>
//   <shape> chosen raced ms <its> first_ms <of cuBLASLt's first answer> algorithm <hex>
//   <shape> chosen first algorithm <hex>
//   end <number of shapes> <checksum of all before this line>
// Plain C++, so that the format is tested without a GPU.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace xce::cuda {

// All that the choice of an algorithm depends on; see Gemm.
struct GemmShape {
  int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b;
  DType in, out;
  bool tf32;       // operands rounded to TF32
  bool has_alpha;  // a factor on the device
  int addend;      // 0 none, 1 in place, 2 apart
  int alignment;   // of every pointer: a power of two, at most 16
  auto operator<=>(const GemmShape&) const = default;
};

using GemmAlgorithm = std::array<unsigned char, 64>;  // a cublasLtMatmulAlgo_t

struct GemmChoice {
  GemmAlgorithm algorithm{};
  bool raced = false;
  double ms = 0, first_ms = 0;  // of a raced one, and of cuBLASLt's first answer in the same race
  bool operator==(const GemmChoice&) const = default;
};

struct GemmPlanText {
  std::string machine;  // one line: where the choices hold
  std::map<GemmShape, GemmChoice> choices;
};

inline std::string describe(const GemmShape& s) {
  constexpr const char* kAddends[] = {"none", "in_place", "apart"};
  return str("m ", s.m, " n ", s.n, " k ", s.k, " lda ", s.lda, " ldb ", s.ldb, " ldc ", s.ldc, " a ",
             s.trans_a ? "transposed" : "plain", " b ", s.trans_b ? "transposed" : "plain", " in ", name_of(s.in),
             " out ", name_of(s.out), " compute ", s.tf32 ? "tf32" : "plain", " alpha ", s.has_alpha ? "device" : "one",
             " addend ", kAddends[s.addend], " align ", s.alignment);
}

namespace gemm_plan_text {

constexpr std::string_view kFirstLine = "xce gemm plans ";
constexpr std::string_view kVersion = "2";

inline uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Reads one line word by word; what it does not expect is damage.
class Line {
 public:
  Line(const std::string& text, const std::string& source, int64_t number)
      : words_(text), source_(source), number_(number) {}

  [[noreturn]] void damaged(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, str(source_, ":", number_, ": damaged GEMM plans: ", what));
  }
  std::string word() {
    std::string word;
    if (!(words_ >> word)) damaged("the line ends early");
    return word;
  }
  void expect(const char* name) {
    if (std::string got = word(); got != name) damaged(str("expected '", name, "', got '", got, "'"));
  }
  // The index of the word among `names`.
  template <size_t N>
  int one_of(const char* name, const std::array<const char*, N>& names) {
    expect(name);
    const std::string got = word();
    for (size_t i = 0; i < N; ++i)
      if (got == names[i]) return static_cast<int>(i);
    damaged(str("unknown ", name, " '", got, "'"));
  }
  template <class Number>
  Number number(const char* name) {
    expect(name);
    const std::string got = word();
    std::istringstream in(got);
    Number value{};
    if (!(in >> value) || in.peek() != EOF || !(value > 0)) damaged(str(name, " '", got, "' is not above 0"));
    return value;
  }
  void end() {
    if (std::string more; words_ >> more) damaged(str("'", more, "' after the end of the line"));
  }

 private:
  std::istringstream words_;
  std::string source_;
  int64_t number_;
};

inline GemmShape read_shape(Line& line) {
  constexpr std::array<const char*, 2> kSides = {"plain", "transposed"};
  constexpr std::array<const char*, 4> kTypes = {"fp32", "bf16", "fp64", "fp16"};  // in DType's order
  constexpr std::array<const char*, 2> kComputes = {"plain", "tf32"}, kAlphas = {"one", "device"};
  constexpr std::array<const char*, 3> kAddends = {"none", "in_place", "apart"};
  GemmShape s{};
  s.m = line.number<int64_t>("m"), s.n = line.number<int64_t>("n"), s.k = line.number<int64_t>("k");
  s.lda = line.number<int64_t>("lda"), s.ldb = line.number<int64_t>("ldb"), s.ldc = line.number<int64_t>("ldc");
  s.trans_a = line.one_of("a", kSides) == 1, s.trans_b = line.one_of("b", kSides) == 1;
  s.in = static_cast<DType>(line.one_of("in", kTypes)), s.out = static_cast<DType>(line.one_of("out", kTypes));
  s.tf32 = line.one_of("compute", kComputes) == 1, s.has_alpha = line.one_of("alpha", kAlphas) == 1;
  s.addend = line.one_of("addend", kAddends);
  s.alignment = line.number<int>("align");
  return s;
}

inline GemmAlgorithm read_algorithm(Line& line) {
  line.expect("algorithm");
  const std::string hex = line.word();
  GemmAlgorithm bytes;
  if (hex.size() != 2 * bytes.size()) line.damaged(str("an algorithm of ", hex.size(), " digits"));
  for (size_t i = 0; i < hex.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(hex[i]);
    if (digit == std::string_view::npos) line.damaged(str("'", hex[i], "' in an algorithm"));
    bytes[i / 2] = static_cast<unsigned char>(i % 2 ? bytes[i / 2] | digit : digit << 4);
  }
  return bytes;
}

inline std::string hex_of(uint64_t value) {
  return (std::ostringstream() << std::hex << std::setw(16) << std::setfill('0') << value).str();
}

}  // namespace gemm_plan_text

inline std::string to_text(const GemmPlanText& plans) {
  using namespace gemm_plan_text;
  std::string text = str(kFirstLine, kVersion, "\nmachine ", plans.machine, "\n");
  for (const auto& [shape, choice] : plans.choices) {
    text += describe(shape);
    text += choice.raced ? str(" chosen raced ms ", choice.ms, " first_ms ", choice.first_ms) : " chosen first";
    text += " algorithm ";
    for (unsigned char byte : choice.algorithm) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    text += "\n";
  }
  return text + str("end ", plans.choices.size(), " ", hex_of(fnv1a(text)), "\n");
}

// `source` names the text in errors: Error(kCorrupt) with it and the line. A text of another version of this format
// has an empty `machine`, which is nobody's.
inline GemmPlanText plans_from_text(const std::string& text, const std::string& source) {
  using namespace gemm_plan_text;
  GemmPlanText plans;
  size_t at = 0;
  for (int64_t number = 1;; ++number) {
    const size_t end = text.find('\n', at);
    const std::string row = text.substr(at, end == std::string::npos ? end : end - at);
    Line line(row, source, number);
    if (end == std::string::npos) line.damaged(row.empty() ? "the last line is missing" : "the line ends early");
    if (number == 1) {
      if (!row.starts_with(kFirstLine)) line.damaged(str("not '", kFirstLine, "'"));
      if (row.substr(kFirstLine.size()) != kVersion) return plans;
    } else if (number == 2) {
      line.expect("machine"), line.word();
      plans.machine = row.substr(std::string_view("machine ").size());
    } else if (row.starts_with("end")) {
      line.expect("end");
      if (line.word() != str(plans.choices.size())) line.damaged(str("not ", plans.choices.size(), " shapes"));
      if (line.word() != hex_of(fnv1a(std::string_view(text).substr(0, at)))) line.damaged("the checksum differs");
      line.end();
      if (end + 1 != text.size()) line.damaged("more after the last line");
      return plans;
    } else {
      const GemmShape shape = read_shape(line);
      GemmChoice choice;
      constexpr std::array<const char*, 2> kChosen = {"first", "raced"};
      choice.raced = line.one_of("chosen", kChosen) == 1;
      if (choice.raced) choice.ms = line.number<double>("ms"), choice.first_ms = line.number<double>("first_ms");
      choice.algorithm = read_algorithm(line);
      line.end();
      if (!plans.choices.emplace(shape, choice).second) line.damaged("the shape stands there twice");
    }
    at = end + 1;
  }
}

}  // namespace xce::cuda

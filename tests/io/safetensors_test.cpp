#include "src/io/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

std::string with_length(const std::string& header, const std::string& data, int64_t length = -1) {
  uint64_t bytes = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string text(8, '\0');
  std::memcpy(text.data(), &bytes, 8);
  return text + header + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return str('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, '}');
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<double> read_doubles(const SafetensorsFile& file, const std::string& name) {
  std::vector<double> out(file.at(name).elements(), std::numeric_limits<double>::quiet_NaN());
  file.read(file.at(name), 0, static_cast<int64_t>(out.size()), DType::kF64, out.data());
  return out;
}

TEST(Safetensors, RoundTripOfEveryType) {
  test::TempDir dir;
  std::string data(48, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 5 + 1);
  std::vector<TensorToWrite> tensors;
  for (auto type : {StoredType::kU8, StoredType::kF64, StoredType::kF32, StoredType::kF16, StoredType::kBf16,
                    StoredType::kI64, StoredType::kI32, StoredType::kI16, StoredType::kI8, StoredType::kU64,
                    StoredType::kU32, StoredType::kU16, StoredType::kBool})
    tensors.push_back({.name = std::string("t.") + name_of(type), .type = type, .shape = {2, 3}, .data = data.data()});
  write_safetensors(dir / "m.safetensors", tensors, {{"note", "häagen"}});
  SafetensorsFile file(dir / "m.safetensors");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "häagen");
  for (const TensorToWrite& tensor : tensors) {
    const StoredTensor& stored = file.at(tensor.name);
    EXPECT_EQ(stored.type, tensor.type);
    EXPECT_EQ(stored.shape, tensor.shape);
    ASSERT_EQ(stored.bytes, 6 * size_of(tensor.type));
    std::string got(stored.bytes, '?');
    file.read_bytes(stored, 0, got.data(), got.size());
    EXPECT_EQ(got, data.substr(0, got.size())) << tensor.name;
  }
}

TEST(Safetensors, ScalarsEmptyTensorsAndStreams) {
  test::TempDir dir;
  float one = 1.5f;
  write_safetensors(dir / "m", {{.name = "scalar", .shape = {}, .data = &one},
                                {.name = "empty", .shape = {0, 7}},
                                {.name = "stream", .shape = {4}, .produce = [](const TensorToWrite::Sink& sink) {
                                   for (float value : {1.f, 2.f, 3.f, 4.f}) sink(&value, sizeof value);
                                 }}});
  SafetensorsFile file(dir / "m");
  EXPECT_EQ(read_doubles(file, "scalar"), std::vector<double>{1.5});
  EXPECT_EQ(file.at("empty").elements(), 0);
  EXPECT_EQ(read_doubles(file, "stream"), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(read_doubles(file, "empty").size(), 0u);
}

TEST(Safetensors, WriterRefusesWrongInput) {
  test::TempDir dir;
  float one = 1;
  auto write = [&](const std::vector<TensorToWrite>& tensors) { write_safetensors(dir / "m", tensors); };
  TensorToWrite scalar{.name = "a", .shape = {}, .data = &one};
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"names", "a"}, [&] { write({scalar, scalar}); }));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"4 bytes of tensor b", "got 0"},
                           [&] { write({{.name = "b", .shape = {}}}); }));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"tensor c", "-1"}, [&] { write({{.name = "c", .shape = {-1}}}); }));
  EXPECT_EQ(test::count_entries(dir.path()), 0u);
}

TEST(Safetensors, ConvertsFloatingTypes) {
  test::TempDir dir;
  const double inf = std::numeric_limits<double>::infinity();
  // half: 1, -2, largest, smallest subnormal, largest subnormal, -0, inf; the bits by IEEE 754's binary16
  std::vector<uint16_t> half = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x8000, 0x7c00};
  std::vector<double> half_values = {1, -2, 65504, 0x1p-24, 1023 * 0x1p-24, 0.0, inf};
  std::vector<uint16_t> nan_half = {0x7e01, 0xfc01};
  std::vector<uint16_t> brain = {0x3f80, 0xc040, 0x0001, 0xff80};
  std::vector<double> brain_values = {1, -3, 0x1p-133, -inf};
  std::vector<float> single = {1.00390625f, 1.01171875f, -3.0f};  // halfway between two bf16: to even, down and up
  std::vector<double> twice = {1.0 + 0x1p-40, -7};
  std::vector<int32_t> ints = {1};
  write_safetensors(dir / "m", {{.name = "h", .type = StoredType::kF16, .shape = {7}, .data = half.data()},
                                {.name = "n", .type = StoredType::kF16, .shape = {2}, .data = nan_half.data()},
                                {.name = "b", .type = StoredType::kBf16, .shape = {4}, .data = brain.data()},
                                {.name = "s", .type = StoredType::kF32, .shape = {3}, .data = single.data()},
                                {.name = "d", .type = StoredType::kF64, .shape = {2}, .data = twice.data()},
                                {.name = "i", .type = StoredType::kI32, .shape = {1}, .data = ints.data()}});
  SafetensorsFile file(dir / "m");
  EXPECT_EQ(read_doubles(file, "h"), half_values);
  EXPECT_TRUE(std::signbit(read_doubles(file, "h")[5]));
  for (double value : read_doubles(file, "n")) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(read_doubles(file, "b"), brain_values);
  EXPECT_EQ(read_doubles(file, "d"), twice);
  std::vector<uint16_t> to_brain(3, 0xffff);
  file.read(file.at("s"), 0, 3, DType::kBf16, to_brain.data());
  EXPECT_EQ(to_brain, (std::vector<uint16_t>{0x3f80, 0x3f82, 0xc040}));
  float part[2] = {-1, -1};
  file.read(file.at("s"), 1, 2, DType::kF32, part);
  EXPECT_EQ(part[0], single[1]);
  EXPECT_EQ(part[1], single[2]);
  float narrow[2];
  file.read(file.at("d"), 0, 2, DType::kF32, narrow);
  EXPECT_EQ(narrow[0], 1.0f);
  EXPECT_EQ(narrow[1], -7.0f);
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"tensor i is I32"},
                           [&] { file.read(file.at("i"), 0, 1, DType::kF32, part); }));
  EXPECT_TRUE(
      throws_error(ErrorCode::kRuntime, {"tensor s"}, [&] { file.read(file.at("s"), 2, 2, DType::kF32, part); }));
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"no tensor q"}, [&] { file.at("q"); }));
}

TEST(Safetensors, ConversionsLongerThanABlock) {
  test::TempDir dir;
  std::vector<float> values(200001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.25f;
  write_safetensors(dir / "m", {{.name = "s", .shape = {200001}, .data = values.data()}});
  auto got = read_doubles(SafetensorsFile(dir / "m"), "s");
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(got[i], values[i]) << i;
}

// Written by hand: tensors in another order than the header's, unaligned, without metadata, header padded with spaces.
TEST(Safetensors, ReadsWhatOthersWrite) {
  test::TempDir dir;
  std::string header = str("{", entry("b", "F32", "[2]", "[1,9]"), ",", entry("a", "U8", "[1]", "[0,1]"), ",",
                           entry("e", "F32", "[0]", "[9,9]"), "}   ");
  test::write_file(dir / "m", with_length(header, str("x", bytes_of<float>({2.5f, -1.f}))));
  std::filesystem::create_symlink(dir / "m", dir / "link");
  SafetensorsFile file(dir / "link");
  EXPECT_EQ(read_doubles(file, "b"), (std::vector<double>{2.5, -1}));
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, CorruptFilesAreRefusedWithTheReason) {
  test::TempDir dir;
  auto refused = [&](const std::string& bytes, const std::string& word) {
    test::write_file(dir / "bad", bytes);
    return throws_error(ErrorCode::kCorrupt, {(dir / "bad").native(), word},
                        [&] { SafetensorsFile file(dir / "bad"); });
  };
  std::string eight(8, 'x');
  auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return with_length(str("{", entry("a", dtype, shape, offsets), "}"), eight);
  };
  std::string good = one("F32", "[2]", "[0,8]");
  test::write_file(dir / "good", good);
  EXPECT_EQ(SafetensorsFile(dir / "good").at("a").elements(), 2);
  EXPECT_TRUE(refused("", "0 bytes"));
  EXPECT_TRUE(refused(good.substr(0, 7), "7 bytes"));
  EXPECT_TRUE(refused(good.substr(0, 20), "header of"));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 1), "the file holds 7"));
  EXPECT_TRUE(refused(good + "y", "the file holds 9"));
  EXPECT_TRUE(refused(with_length("{}", "", 100'000'001), "at most 100000000"));
  EXPECT_TRUE(refused(with_length("{}", "", INT64_MAX), "at most 100000000"));
  EXPECT_TRUE(refused(std::string(8, '\xff') + "{}", "at most 100000000"));
  EXPECT_TRUE(refused(with_length("", ""), "begin with"));
  EXPECT_TRUE(refused(with_length(" {}", ""), "begin with"));
  EXPECT_TRUE(refused(with_length("{", ""), "not JSON"));
  EXPECT_TRUE(refused(with_length("{} x", ""), "not JSON"));
  EXPECT_TRUE(refused(with_length("{\"\xff\":1}", ""), "not JSON"));
  EXPECT_TRUE(refused(with_length(std::string(100000, '{'), ""), "header"));
  EXPECT_TRUE(refused(with_length("{\"a\":" + std::string(100000, '[') + "}", ""), "nested"));
  EXPECT_TRUE(refused(one("F31", "[2]", "[0,8]"), "F31"));
  EXPECT_TRUE(refused(one("F32", "[-2]", "[0,8]"), "-2"));
  EXPECT_TRUE(refused(one("F32", "[2.0]", "[0,8]"), "2.0"));
  EXPECT_TRUE(refused(one("F32", "\"2\"", "[0,8]"), "shape"));
  EXPECT_TRUE(refused(one("F32", "[3]", "[0,8]"), "12 bytes"));
  EXPECT_TRUE(refused(one("F32", "[2]", "[8,0]"), "8 bytes"));
  EXPECT_TRUE(refused(one("F32", "[2]", "[0]"), "pair"));
  EXPECT_TRUE(refused(one("F32", "[2]", "[1,9]"), "begins at 1"));
  EXPECT_TRUE(refused(one("F32", "[2305843009213693952,2]", "[0,0]"), "overflows"));
  EXPECT_TRUE(refused(one("F32", "[4611686018427387906]", "[0,8]"), "overflows"));  // times 4 wraps to 8
  EXPECT_TRUE(refused(one("F32", "[99999999999999999999]", "[0,8]"), "unsigned"));
  EXPECT_TRUE(refused(with_length(R"({"a":{"dtype":"F32","shape":[2]}})", eight), "data_offsets"));
  EXPECT_TRUE(refused(with_length(R"({"a":3})", eight), "tensor a"));
  EXPECT_TRUE(refused(with_length(R"({"__metadata__":{"k":1}})", ""), "__metadata__"));
  EXPECT_TRUE(refused(with_length(R"({"__metadata__":[]})", ""), "__metadata__"));
  std::string pair = str("{", entry("a", "F32", "[1]", "[0,4]"), ",");
  EXPECT_TRUE(refused(with_length(pair + entry("b", "F32", "[1]", "[0,4]") + "}", eight), "begins at 0"));  // overlap
  EXPECT_TRUE(refused(with_length(pair + entry("b", "U8", "[3]", "[5,8]") + "}", eight), "begins at 5"));   // gap
  EXPECT_TRUE(
      refused(with_length(pair + entry("a", "F32", "[1]", "[4,8]") + "}", eight), "\"a\" occurs twice"));  // doubled
  EXPECT_TRUE(refused(with_length(pair + entry("b", "F32", "[2]", "[4,12]") + "}", eight), "ends at 12"));
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"nothing"}, [&] { SafetensorsFile file(dir / "nothing"); }));
}

}  // namespace
}  // namespace xce

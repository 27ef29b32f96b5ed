#include "src/train/training_state.h"

#include <algorithm>

namespace xce {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 20;

struct Arrays {
  const char* name;
  void* data;
};
std::vector<Arrays> arrays(ParameterSet& parameters) {
  return {{"master.bin", parameters.master()},
          {"first_moment.bin", parameters.first_moment()},
          {"second_moment.bin", parameters.second_moment()}};
}
size_t array_bytes(const ParameterSet& parameters) {
  return static_cast<size_t>(parameters.size()) * size_of(accum_dtype(parameters.dtype()));
}

template <class T>
T get(const CheckpointReader& reader, const char* key) {
  try {
    return reader.state().at(key).get<T>();
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kCorrupt, str("checkpoint of step ", reader.step(), ": state.json: ", key, ": ", e.what()));
  }
}

}  // namespace

std::filesystem::path save_training_state(const std::filesystem::path& root, int64_t keep, const TrainingMeta& meta,
                                          const Step& step, ParameterSet& parameters) {
  const StepState s = step.state();
  CheckpointWriter writer(root, s.step);
  for (const Arrays& a : arrays(parameters))
    writer.add(a.name, [&](const CheckpointWriter::Sink& sink) {
      const size_t total = array_bytes(parameters);
      for (size_t at = 0; at < total; at += kPieceBytes) {
        const size_t size = std::min(kPieceBytes, total - at);
        sink(HostCopy(parameters.memory(), static_cast<const char*>(a.data) + at, size).data(), size);
      }
    });
  writer.set_state({{"step", s.step},
                    {"updates", s.updates},
                    {"skipped", s.skipped},
                    {"data_fingerprint", meta.data_fingerprint},
                    {"precision", name_of(parameters.dtype())},
                    {"config", meta.config_yaml}});
  return writer.commit(keep);
}

TrainingMeta read_training_meta(const CheckpointReader& reader) {
  return {get<std::string>(reader, "config"), get<uint64_t>(reader, "data_fingerprint")};
}

StepState load_training_state(const CheckpointReader& reader, ParameterSet& parameters, const Exec& exec) {
  StepState s{};
  s.step = get<int64_t>(reader, "step");
  s.updates = get<int64_t>(reader, "updates");
  s.skipped = get<int64_t>(reader, "skipped");
  const size_t size = array_bytes(parameters);
  for (const Arrays& a : arrays(parameters)) {
    Buffer copy(parameters.memory().host_readable() ? 0 : size);
    void* host = copy.data() ? copy.data() : a.data;
    reader.read(a.name, host, size);
    parameters.memory().copy_in(a.data, host, size);
  }
  parameters.update_compute(exec);
  return s;
}

}  // namespace xce

// Everything a run is made of, built from its configuration and checked before anything is written or allocated.
#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/parallel.h"
#include "src/core/config.h"
#include "src/data/loader.h"
#include "src/data/prefetcher.h"
#include "src/dist/communicator.h"
#include "src/model/llama.h"
#include "src/train/dataset.h"
#include "src/train/step.h"

namespace xce {

// Bytes of one rank's device memory by use; `arena` is exact, from a dry run of a step and of an evaluation.
struct MemoryPlan {
  size_t parameters = 0;  // masters, compute copy, gradients, moments
  size_t arena = 0;       // activations, their gradients, scratch, the loss's workspace
  size_t other = 0;       // tokens, rotary table, scalars, libraries' scratch
  size_t total() const { return parameters + arena + other; }
};

enum class InitialWeights {
  kAsConfigured,    // from model.init_from, else random by run.seed
  kFromCheckpoint,  // left for the caller to fill
};

struct PlanOnly {
  int64_t ranks = 0;  // rank 0 of a world of this size; 0: the world this process is in
};

class RunSetup {
 public:
  // kUsage and kCorrupt for what is wrong with the configuration or its files.
  // device: where the run lives; null: what run.device names.
  explicit RunSetup(Config config, std::unique_ptr<Device> device = nullptr);
  // For describe() alone (--dry-run): takes no memory and needs no GPU.
  RunSetup(Config config, PlanOnly plan);

  const Config& config() const { return config_; }
  const Dataset& dataset() const { return dataset_; }
  const Loader& loader() const { return *loader_; }
  const Llama& model() const { return *model_; }
  ParameterSet& parameters() { return *parameters_; }
  Communicator& world() { return *world_; }
  Device& device() const { return *device_; }
  Step& step() { return *step_; }

  BatchPlan batch_plan() const;  // this rank's share of a global batch
  int64_t tokens_per_step() const { return config_.train.global_batch * config_.train.seq_len; }
  MemoryPlan memory_plan() const;
  uint64_t checkpoint_bytes() const;  // masters and moments
  double communicated_bytes() const;  // by each rank in a step: a ring's all-reduce of the gradients
  // Model, data, batch, memory and cost for people, several lines: printed at the start and by --dry-run.
  std::string describe() const;

  // Allocates the parameters and gives them their first values.
  void allocate(InitialWeights weights = InitialWeights::kAsConfigured);
  // Makes the step ready to run, once the parameters have their values.
  void prepare() { step_->prepare(); }

 private:
  RunSetup(Config config, bool plan_only, int64_t ranks, std::unique_ptr<Device> device);
  CpuExec host() const { return {pool_.get()}; }

  Config config_;
  Dataset dataset_;
  std::unique_ptr<Communicator> world_;
  int64_t ranks_;
  std::unique_ptr<ThreadPool> pool_;  // for work of the host itself
  std::unique_ptr<Device> device_;
  std::unique_ptr<ParameterSet> parameters_;
  std::unique_ptr<Llama> model_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Step> step_;
};

}  // namespace xce

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/cuda/devices.hpp"
#include "data/corpus.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"

/// @file
/// The exact run of lesson 01 with default options, out of the exact kernels, the model and the data alone. It needs a
/// C++ compiler and the headers of fmt, but no MPI, HDF5 or OpenSSL, so it can be built for processors whose libraries are
/// not at hand. test_portable_run.py builds it with several compilers and compares what it prints.
///
///     exact_run STEPS DROPOUT f32|bf16 FILE
///
/// It prints a line with the hash of each tensor as it is computed, and writes the parameters to FILE, so that its SHA-256 is
/// the digest of the run.

namespace rankwise {

// ---- What only a whole build has ----------------------------------------------------------------------------------------

std::unique_ptr<Device> make_cuda_device()
{
  throw Error("this program knows no GPU");
}

Sha256::Sha256() : state_(nullptr, [](evp_md_ctx_st*) {}) {}
void Sha256::update(std::span<const std::byte>) {}
std::string Sha256::hex() const
{
  return "";
}

// ---- The run ------------------------------------------------------------------------------------------------------------

namespace {

/// FNV-1a of 64 bits.
std::uint64_t hash_of(std::span<const std::byte> bytes)
{
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3;
  return hash;
}

void print(const std::string& what, const Tensor& tensor)
{
  fmt::print("{}: {:016x}\n", what, hash_of({tensor.raw(), static_cast<std::size_t>(tensor.bytes())}));
}

void print(const std::string& what, double value)
{
  fmt::print("{}: {:016x} {}\n", what, std::bit_cast<std::uint64_t>(value), value);
}

/// A model on one device, and its optimizer.
class ExactRun {
 public:
  ExactRun(std::int64_t steps, double dropout, DType precision)
      : steps_(steps), dropout_(dropout), precision_(precision)
  {
    initialize_parameters(*stream_, master_, table_, config_, seed);
    adamw_.round(kernels_, parameters_.tensor());
    print("initial parameters", master_);
  }

  void train()
  {
    for (std::int64_t step = 0; step < steps_; ++step) {
      LossSum loss;
      gradients_->clear();
      for (std::int64_t g = 0; g < global_batch; ++g) loss += train(step, {g, 1});
      update(step, loss);
    }
  }

  /// Writes all parameters in table order, as little-endian f32, without padding.
  void write(std::FILE* file) const
  {
    for (const Parameter& p : table_.entries()) {
      const auto count = static_cast<std::size_t>(p.shape.elements());
      check(std::fwrite(master_.slice(p.elements).raw(), sizeof(float), count, file) == count, "a write failed");
    }
  }

 private:
  /// Forward and backward pass of one sequence.
  LossSum train(std::int64_t step, Range sequence)
  {
    const std::string where = fmt::format("step {}, sequence {}, ", step, sequence.first);
    loader_.load(step, sequence, batch_);
    const GradientTensors d = gradients_->begin(sequence);
    const LossSum loss =
        forward_backward(model_, model_tensors(table_, parameters_.tensor()), model_tensors(table_, d), kept_,
                         work_, *stream_, place(kept_, *stream_, batch_, sequence, step));
    gradients_->end(sequence);
    for (std::size_t i = 0; i < kept_.branches.size(); ++i) {
      const std::string branch = fmt::format("{} of block {}", i % 2 == 0 ? "attention" : "MLP", i / 2);
      print(where + "input of the " + branch, kept_.branches[i].input);
      print(where + "norm's output in the " + branch, kept_.branches[i].normalised);
      print(where + "hidden values of the " + branch, kept_.branches[i].hidden);
    }
    print(where + "input of the head", kept_.head.input);
    print(where + "loss", loss.nats.value());
    print(where + "gradient of the logits", kept_.head.logits);
    print(where + "gradient of the embedding's output", work_.dstream);
    return loss;
  }

  void update(std::int64_t step, const LossSum& loss)
  {
    const std::string where = fmt::format("step {}, ", step);
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const Tensor gradient = gradients_->total();
    for (const Parameter& p : table_.entries()) print(where + "gradient of " + p.name, gradient.slice(p.elements));
    const double norm = std::sqrt(kernels_->squared_norm(gradient).value()) / valid_tokens;
    print(where + "norm of the gradient", norm);
    print(where + "learning rate", schedule_.at(step));
    adamw_.step(kernels_, parameters_.tensor(), gradient, schedule_.at(step), clip_factor(norm, 1) / valid_tokens);
    for (const Parameter& p : table_.entries()) print(where + "updated " + p.name, master_.slice(p.elements));
  }

  static constexpr std::uint32_t seed = 1;
  static constexpr std::int64_t global_batch = 16;

  std::int64_t steps_;
  double dropout_;
  DType precision_;
  ModelConfig config_ = preset("nano");
  ActivationShape shape_{.type = precision_, .B = 1, .T = config_.context};
  LearningRateSchedule schedule_{.peak = 1e-3, .warmup = 10, .steps = steps_};
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  MemoryLedger ledger_;
  DeviceMemory memory_{device_.get(), &ledger_};
  Kernels kernels_ = make_exact_kernels();
  ParameterTable table_{config_};
  Loader loader_{embedded_corpus().train, {.T = config_.context, .global_batch = global_batch, .seed = seed}};
  Batch batch_;
  Model model_{{config_, kernels_, {}, dropout_, seed, stream_.get()}};
  Buffer parameters_{memory_, Category::parameters, precision_, {table_.elements()}, "parameters"};
  std::unique_ptr<GradientSum> gradients_ =
      make_tree_sum(kernels_, *stream_, memory_, gradient_layout(table_, DType::f32));
  AdamW adamw_{memory_, *stream_, table_, {0, table_.elements()}, precision_, {}};
  Tensor master_ = adamw_.master(parameters_.tensor());
  Workspace work_{memory_, config_, shape_};
  Activations kept_{memory_, config_, shape_, work_};
};

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  if (argc != 5) return 2;
  const DType precision = std::string_view(argv[3]) == "bf16" ? DType::bf16 : DType::f32;
  ExactRun run(std::atoll(argv[1]), std::atof(argv[2]), precision);
  run.train();
  std::FILE* const file = std::fopen(argv[4], "wb");
  check(file != nullptr, "the file of parameters cannot be created");
  run.write(file);
  return std::fclose(file) == 0 ? 0 : 1;
}

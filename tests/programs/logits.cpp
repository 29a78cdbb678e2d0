// Prints the logits of the token that follows some tokens, by a model whose weights are in a checkpoint:
//   logits FILE.h5 TOKEN...

#include <cstdlib>
#include <memory>

#include <fmt/ranges.h>

#include "gpt2/arithmetic.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "gpt2/generate.hpp"

int main(int argc, char** argv)
{
  using namespace rankwise;
  std::vector<Token> tokens;
  for (int i = 2; i < argc; ++i) tokens.push_back(static_cast<Token>(std::strtol(argv[i], nullptr, 10)));

  const CheckpointInfo info = check_checkpoint(argv[1], argv[1]);
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const Kernels kernels = Arithmetic(Sums::fast).make_kernels(memory, *stream);
  const ParameterTable table(info.config);
  const Buffer parameters(memory, Category::parameters, DType::f32, {table.elements()}, "parameters");
  read_checkpoint(argv[1], *stream, {table, {0, table.elements()}, parameters.tensor(), {}, {}});

  const Model model({info.config, kernels, {}, 0, 0});
  Generator generator(memory, *stream, model, model_tensors(table, parameters.tensor()), info.config.context);
  fmt::print("[{}]\n", fmt::join(generator.next_logits(tokens), ", "));
}

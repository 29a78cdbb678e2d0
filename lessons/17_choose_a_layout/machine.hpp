#pragma once

#include <string>
#include <vector>

#include "common/memory/device.hpp"
#include "common/program/option_value.hpp"

/// @file
/// The machine that is planned for: what its data sheet says, and the constants of the model of time.

namespace rankwise {

/// What a machine reaches of its data sheet. Each constant has a physical meaning, and calibration.hpp can fit it to measured
/// steps.
struct TimeConstants {
  Quantity product_share{""};   ///< share of the peak, reached by large matrix products
  Quantity inner_length{""};    ///< summands of an element of a product at which it reaches half of that
  Quantity memory_share{""};    ///< share of the memory's rate, reached by all else that a layer does
  Quantity node_rate{"B/s"};    ///< at which a GPU sends in an all-reduce inside a node
  Quantity meeting{"s"};        ///< until two GPUs have met for a tensor-parallel sum; t GPUs: log2 t times as long
  Quantity network_share{""};   ///< share of the network's rate, reached by messages between nodes
  Quantity host{"s"};           ///< in which the host starts the kernels of a layer's forward pass
  Quantity hidden_sums{""};     ///< share of the backward pass's tensor-parallel sums that weight gradients hide
  Quantity gather_share{""};    ///< share of the network's rate, reached by ZeRO-3's messages
  Quantity gather{"s"};         ///< beyond its bytes, for ZeRO-3 to fetch a layer
  Quantity hidden_gathers{""};  ///< how far ZeRO-3's messages and the computation hide each other
  Quantity slow_node_rate{"B/s"};  ///< node_rate of rows that were measured without the fast links
};

/// One of the constants, and what is known of it on any machine.
struct ConstantKind {
  std::string name;                   ///< in a machine file
  Quantity TimeConstants::*constant;  ///< which one
  double least;                       ///< lower bound
  double most;                        ///< upper bound
  double spread;                      ///< standard deviation of its logarithm, or of a share that may be 0 itself
  bool may_be_zero;                   ///< whether it has no logarithm
};
/// All of them.
const std::vector<ConstantKind>& constant_kinds();

/// A machine of many GPUs.
struct Machine {
  std::string name;                      ///< for the report
  DeviceKind device = DeviceKind::cuda;  ///< what computes: GPUs, or the processor cores of "this machine"
  int gpus_per_node = 0;                 ///< GPUs that have fast links to each other
  Quantity memory{"B"};                  ///< a GPU's
  Quantity half{"FLOP/s"};               ///< peak of a GPU with 16-bit factors
  Quantity single{"FLOP/s"};             ///< the same with 32-bit factors
  Quantity memory_rate{"B/s"};           ///< that of a GPU's memory
  Quantity network{"B/s"};               ///< all network links of a node together, in one direction
  Quantity network_latency{"s"};         ///< a message's, between nodes
  Quantity host_memory{"B"};             ///< a node's
  Quantity host_memory_rate{"B/s"};      ///< that of a node's host memory
  Quantity host_rate{"B/s"};             ///< a GPU's link to the host, in one direction
  Quantity disk_rate{"B/s"};             ///< a node's disk
  TimeConstants constants;               ///< what it reaches
};

/// Reads a machine file: one `name = value` per line, quantities with their units.
/// @throws UserError  with file and line for a value without its unit, and for what is missing.
Machine read_machine(const std::string& path);

}  // namespace rankwise

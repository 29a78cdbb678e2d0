#include <algorithm>
#include <cstring>
#include <nccl.h>

#include <fmt/format.h>

#include "tests/emulated_cuda/nccl_exchange.hpp"

/// @file
/// NCCL: groups, and what messages each call consists of.

using namespace emulated_cuda;

namespace {

/// A call that waits for the end of its group.
struct Waiting {
  std::shared_ptr<ncclComm> communicator;
  cudaStream_t stream;
  Call call;
};

thread_local int group_depth = 0;
thread_local std::vector<Waiting> group;
thread_local ncclResult_t group_result = ncclSuccess;

std::size_t bytes_of(ncclDataType_t type)
{
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

template <class T>
void add_as(void* to, const Received& received, std::size_t bytes)
{
  const std::size_t count = bytes / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (const auto& part : received) sum = static_cast<T>(sum + reinterpret_cast<const T*>(part.data())[i]);
    static_cast<T*>(to)[i] = sum;
  }
}

/// bf16 is the upper half of f32: sums in f32, rounded once, to the nearest and then to even.
void add_bf16(void* to, const Received& received, std::size_t bytes)
{
  for (std::size_t i = 0; i < bytes / 2; ++i) {
    float sum = 0.0f;
    for (const auto& part : received) {
      const std::uint32_t bits = std::uint32_t{reinterpret_cast<const std::uint16_t*>(part.data())[i]} << 16;
      float value = 0.0f;
      std::memcpy(&value, &bits, sizeof value);
      sum += value;
    }
    std::uint32_t bits = 0;
    std::memcpy(&bits, &sum, sizeof bits);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    static_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(bits >> 16);
  }
}

/// Adds what all ranks have sent, in the order of the ranks.
void add(void* to, const Received& received, std::size_t bytes, ncclDataType_t type)
{
  switch (type) {
    case ncclInt8:
      return add_as<std::int8_t>(to, received, bytes);
    case ncclUint8:
      return add_as<std::uint8_t>(to, received, bytes);
    case ncclInt32:
      return add_as<std::int32_t>(to, received, bytes);
    case ncclInt64:
      return add_as<std::int64_t>(to, received, bytes);
    case ncclFloat32:
      return add_as<float>(to, received, bytes);
    case ncclFloat64:
      return add_as<double>(to, received, bytes);
    case ncclBfloat16:
      return add_bf16(to, received, bytes);
  }
}

/// One after the other.
void put(void* to, const Received& received)
{
  auto* next = static_cast<std::byte*>(to);
  for (const auto& part : received) next = std::copy(part.begin(), part.end(), next);
}

enum Kind { kind_message, kind_all_reduce, kind_reduce, kind_broadcast, kind_reduce_scatter, kind_all_gather };

ncclResult_t end_group()
{
  if (--group_depth > 0) return ncclSuccess;
  const std::vector<Waiting> calls = std::exchange(group, {});
  const ncclResult_t result = std::exchange(group_result, ncclSuccess);
  if (result != ncclSuccess) return result;
  for (auto first = calls.begin(); first != calls.end(); ++first) {
    const auto same = [first](const Waiting& other) {
      return other.communicator == first->communicator && other.stream == first->stream;
    };
    if (std::any_of(calls.begin(), first, same)) continue;
    std::vector<Call> together;
    for (auto call = first; call != calls.end(); ++call)
      if (same(*call)) together.push_back(call->call);
    queue_exchange(first->communicator, first->stream, std::move(together));
  }
  return ncclSuccess;
}

/// The common part of all calls that send or receive.
/// @param call_for  gives the call, for a communicator.
template <class CallFor>
ncclResult_t queue_call(const char* name, ncclComm_t communicator, cudaStream_t stream, ncclDataType_t type,
                        int peer, CallFor call_for)
{
  return nccl_call(name, [&] {
    const std::shared_ptr<ncclComm> known = find_communicator(communicator);
    ++group_depth;
    if (known == nullptr) {
      group_result = nccl_error(ncclInvalidArgument, fmt::format("{}: no such communicator", name));
    } else if (!is_stream(stream, name) || stream->device != known->device) {
      group_result =
          nccl_error(ncclInvalidArgument, fmt::format("{}: no stream of the communicator's device", name));
    } else if (known->device->error != cudaSuccess) {
      group_result = nccl_error(ncclUnhandledCudaError, fmt::format("{}: the device is lost", name));
    } else if (peer < 0 || peer >= known->ranks || bytes_of(type) == 0) {
      group_result = nccl_error(ncclInvalidArgument, fmt::format("{}: no such rank or type", name));
    } else {
      group.push_back({known, stream, call_for(*known)});
    }
    const ncclResult_t result = group_result;
    const ncclResult_t ended = end_group();
    return result != ncclSuccess ? result : ended;
  });
}

}  // namespace

ncclResult_t ncclGroupStart()
{
  return nccl_call("ncclGroupStart", [] {
    ++group_depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd()
{
  return nccl_call("ncclGroupEnd", [] {
    return group_depth == 0 ? nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart") : end_group();
  });
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream)
{
  return queue_call("ncclSend", communicator, stream, type, peer, [&](const ncclComm&) {
    return Call{kind_message, {{peer, from, count * bytes_of(type)}}, {}, nullptr, 0, [](const Received&) {}};
  });
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream)
{
  return queue_call("ncclRecv", communicator, stream, type, peer, [&](const ncclComm&) {
    const std::size_t bytes = count * bytes_of(type);
    return Call{kind_message, {}, {{peer, nullptr, bytes}}, to, bytes, [to](const Received& r) { put(to, r); }};
  });
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream)
{
  return queue_call("ncclAllReduce", communicator, stream, type, 0, [&](const ncclComm& c) {
    const std::size_t bytes = count * bytes_of(type);
    Call call{kind_all_reduce, {}, {}, to, bytes, [=](const Received& r) { add(to, r, bytes, type); }};
    for (int peer = 0; peer < c.ranks; ++peer) {
      call.sent.push_back({peer, from, bytes});
      call.received.push_back({peer, nullptr, bytes});
    }
    return call;
  });
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t communicator, cudaStream_t stream)
{
  return queue_call("ncclReduce", communicator, stream, type, root, [&](const ncclComm& c) {
    const std::size_t bytes = count * bytes_of(type);
    Call call{kind_reduce, {{root, from, bytes}}, {}, nullptr, 0, [](const Received&) {}};
    if (c.rank != root) return call;
    call.output = to;
    call.output_bytes = bytes;
    call.finish = [=](const Received& r) { add(to, r, bytes, type); };
    for (int peer = 0; peer < c.ranks; ++peer) call.received.push_back({peer, nullptr, bytes});
    return call;
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream)
{
  return queue_call("ncclBroadcast", communicator, stream, type, root, [&](const ncclComm& c) {
    const std::size_t bytes = count * bytes_of(type);
    Call call{kind_broadcast, {}, {{root, nullptr, bytes}}, to, bytes, [to](const Received& r) { put(to, r); }};
    for (int peer = 0; peer < c.ranks && c.rank == root; ++peer) call.sent.push_back({peer, from, bytes});
    return call;
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t communicator, cudaStream_t stream)
{
  return queue_call("ncclReduceScatter", communicator, stream, type, 0, [&](const ncclComm& c) {
    const std::size_t bytes = count * bytes_of(type);
    Call call{kind_reduce_scatter, {}, {}, to, bytes, [=](const Received& r) { add(to, r, bytes, type); }};
    for (int peer = 0; peer < c.ranks; ++peer) {
      call.sent.push_back(
          {peer, static_cast<const std::byte*>(from) + static_cast<std::size_t>(peer) * bytes, bytes});
      call.received.push_back({peer, nullptr, bytes});
    }
    return call;
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream)
{
  return queue_call("ncclAllGather", communicator, stream, type, 0, [&](const ncclComm& c) {
    const std::size_t bytes = count * bytes_of(type);
    Call call{kind_all_gather,
              {},
              {},
              to,
              bytes * static_cast<std::size_t>(c.ranks),
              [to](const Received& r) { put(to, r); }};
    for (int peer = 0; peer < c.ranks; ++peer) {
      call.sent.push_back({peer, from, bytes});
      call.received.push_back({peer, nullptr, bytes});
    }
    return call;
  });
}

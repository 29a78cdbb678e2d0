// MPI's calls for messages between two ranks.

#include <algorithm>
#include <string>

#include "tests/judge/mpi/handles.hpp"

using namespace judge;

namespace {

Request* request_of(MPI_Request handle)
{
  return object_of<Request>(handle);
}

/// Takes note of a complete request and forgets it.
void end(MPI_Request* handle, MPI_Status* status)
{
  if (*handle == MPI_REQUEST_NULL) return fill(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0);
  Request* request = request_of(*handle);
  const int source =
      request->bytes == 0 && request->source < 0 ? MPI_ANY_SOURCE : request->communicator->rank_of(request->source);
  fill(status, source, request->tag, request->bytes);
  delete request;
  *handle = MPI_REQUEST_NULL;
}

bool is_done(MPI_Request handle)
{
  return handle == MPI_REQUEST_NULL || request_of(handle)->done;
}

void wait_for(Request* request)
{
  connection().wait([request] { return request->done; }, request->what);
}

MPI_Status* at(MPI_Status* statuses, int i)
{
  return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : statuses + i;
}

/// A request that is complete at once: of a message to or from MPI_PROC_NULL.
Request* nothing(MPI_Comm comm)
{
  return new Request{.done = true, .source = MPI_PROC_NULL, .tag = MPI_ANY_TAG, .communicator = &of(comm)};
}

Request* start_send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                    const char* call)
{
  return to == MPI_PROC_NULL ? nothing(comm)
                             : connection().send(of(comm), elements(data, count, type), to, tag, call);
}

Request* start_receive(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, const char* call)
{
  return from == MPI_PROC_NULL ? nothing(comm)
                               : connection().receive(of(comm), elements(data, count, type), from, tag, call);
}

/// The envelope of a message that was found.
void fill_envelope(MPI_Status* status, const Message& message, MPI_Comm comm)
{
  fill(status, of(comm).rank_of(message.source), message.tag, message.data.size());
}

Message* wait_for_message(int from, int tag, MPI_Comm comm, bool takes, const char* call)
{
  Message* found = nullptr;
  connection().wait([&] { return (found = connection().find(of(comm), from, tag, takes)) != nullptr; },
                    message_of(from, call, tag));
  return found;
}

int test_some(int count, MPI_Request requests[], int* completed, int indices[], MPI_Status statuses[])
{
  const std::lock_guard lock(connection().mutex());
  *completed = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    any = true;
    if (!is_done(requests[i])) continue;
    end(&requests[i], at(statuses, *completed));
    indices[(*completed)++] = i;
  }
  if (!any) *completed = MPI_UNDEFINED;
  connection().found(*completed != 0);
  return MPI_SUCCESS;
}

}  // namespace

#define RANKWISE_SEND(NAME)                                                                                   \
  extern "C" int PMPI_##NAME(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)  \
  {                                                                                                           \
    MPI_Request request = handle_of<MPI_Request>(start_send(data, count, type, to, tag, comm, "MPI_" #NAME)); \
    return PMPI_Wait(&request, MPI_STATUS_IGNORE);                                                            \
  }
RANKWISE_SEND(Send)
RANKWISE_SEND(Ssend)

#define RANKWISE_ISEND(NAME)                                                                                 \
  extern "C" int PMPI_##NAME(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, \
                             MPI_Request* request)                                                           \
  {                                                                                                          \
    *request = handle_of<MPI_Request>(start_send(data, count, type, to, tag, comm, "MPI_" #NAME));           \
    return MPI_SUCCESS;                                                                                      \
  }
RANKWISE_ISEND(Isend)
RANKWISE_ISEND(Issend)

extern "C" {

int PMPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request)
{
  *request = handle_of<MPI_Request>(start_receive(data, count, type, from, tag, comm, "MPI_Irecv"));
  return MPI_SUCCESS;
}

int PMPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  MPI_Request request = handle_of<MPI_Request>(start_receive(data, count, type, from, tag, comm, "MPI_Recv"));
  return PMPI_Wait(&request, status);
}

int PMPI_Sendrecv(const void* sent, int sent_count, MPI_Datatype sent_type, int to, int sent_tag, void* received,
                  int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  MPI_Request receive =
      handle_of<MPI_Request>(start_receive(received, count, type, from, tag, comm, "MPI_Sendrecv"));
  MPI_Request send =
      handle_of<MPI_Request>(start_send(sent, sent_count, sent_type, to, sent_tag, comm, "MPI_Sendrecv"));
  PMPI_Wait(&receive, status);
  return PMPI_Wait(&send, MPI_STATUS_IGNORE);
}

int PMPI_Sendrecv_replace(void* data, int count, MPI_Datatype type, int to, int sent_tag, int from, int tag,
                          MPI_Comm comm, MPI_Status* status)
{
  const std::span<std::byte> values = elements(data, count, type);
  const std::vector<std::byte> copy(values.begin(), values.end());
  return PMPI_Sendrecv(copy.data(), count, type, to, sent_tag, data, count, type, from, tag, comm, status);
}

int PMPI_Wait(MPI_Request* request, MPI_Status* status)
{
  if (*request != MPI_REQUEST_NULL) wait_for(request_of(*request));
  end(request, status);
  return MPI_SUCCESS;
}

int PMPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
  for (int i = 0; i < count; ++i) PMPI_Wait(&requests[i], at(statuses, i));
  return MPI_SUCCESS;
}

int PMPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status)
{
  const std::span<MPI_Request> all(requests, static_cast<std::size_t>(count));
  *index = MPI_UNDEFINED;
  if (std::all_of(all.begin(), all.end(), [](MPI_Request r) { return r == MPI_REQUEST_NULL; })) {
    fill(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0);
    return MPI_SUCCESS;
  }
  const auto done = [&] {
    return std::find_if(all.begin(), all.end(), [](MPI_Request r) { return r != MPI_REQUEST_NULL && is_done(r); });
  };
  connection().wait([&] { return done() != all.end(); }, "one of several messages (MPI_Waitany)");
  const std::lock_guard lock(connection().mutex());
  *index = static_cast<int>(done() - all.begin());
  end(&requests[*index], status);
  return MPI_SUCCESS;
}

int PMPI_Waitsome(int count, MPI_Request requests[], int* completed, int indices[], MPI_Status statuses[])
{
  const std::span<MPI_Request> all(requests, static_cast<std::size_t>(count));
  if (std::any_of(all.begin(), all.end(), [](MPI_Request r) { return r != MPI_REQUEST_NULL; }))
    connection().wait(
        [&] {
          return std::any_of(all.begin(), all.end(),
                             [](MPI_Request r) { return r != MPI_REQUEST_NULL && is_done(r); });
        },
        "one of several messages (MPI_Waitsome)");
  return test_some(count, requests, completed, indices, statuses);
}

int PMPI_Test(MPI_Request* request, int* flag, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  *flag = connection().found(is_done(*request)) ? 1 : 0;
  if (*flag != 0) end(request, status);
  return MPI_SUCCESS;
}

int PMPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[])
{
  const std::lock_guard lock(connection().mutex());
  const std::span<MPI_Request> all(requests, static_cast<std::size_t>(count));
  *flag = connection().found(std::all_of(all.begin(), all.end(), is_done)) ? 1 : 0;
  for (int i = 0; i < count && *flag != 0; ++i) end(&requests[i], at(statuses, i));
  return MPI_SUCCESS;
}

int PMPI_Testany(int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  *flag = 0;
  *index = MPI_UNDEFINED;
  for (int i = 0; i < count && *flag == 0; ++i)
    if (requests[i] != MPI_REQUEST_NULL && is_done(requests[i])) {
      *flag = 1;
      *index = i;
      end(&requests[i], status);
    }
  connection().found(*flag != 0);
  return MPI_SUCCESS;
}

int PMPI_Testsome(int count, MPI_Request requests[], int* completed, int indices[], MPI_Status statuses[])
{
  return test_some(count, requests, completed, indices, statuses);
}

int PMPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status)
{
  fill_envelope(status, *wait_for_message(from, tag, comm, false, "MPI_Probe"), comm);
  return MPI_SUCCESS;
}

int PMPI_Iprobe(int from, int tag, MPI_Comm comm, int* flag, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  const Message* found = connection().find(of(comm), from, tag, false);
  *flag = connection().found(found != nullptr) ? 1 : 0;
  if (found != nullptr) fill_envelope(status, *found, comm);
  return MPI_SUCCESS;
}

int PMPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status)
{
  Message* found = wait_for_message(from, tag, comm, true, "MPI_Mprobe");
  fill_envelope(status, *found, comm);
  *message = handle_of<MPI_Message>(found);
  return MPI_SUCCESS;
}

int PMPI_Improbe(int from, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status)
{
  const std::lock_guard lock(connection().mutex());
  Message* found = connection().find(of(comm), from, tag, true);
  *flag = connection().found(found != nullptr) ? 1 : 0;
  if (found != nullptr) fill_envelope(status, *found, comm);
  if (found != nullptr) *message = handle_of<MPI_Message>(found);
  return MPI_SUCCESS;
}

int PMPI_Mrecv(void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status)
{
  auto* taken = object_of<Message>(*message);
  fill(status, taken->source, taken->tag, taken->data.size());
  connection().take(taken, elements(data, count, type));
  *message = MPI_MESSAGE_NULL;
  return MPI_SUCCESS;
}

int PMPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count)
{
  const std::size_t bytes = bytes_of(*status), size = size_of(type);
  *count = bytes % size == 0 ? static_cast<int>(bytes / size) : MPI_UNDEFINED;
  return MPI_SUCCESS;
}

}  // extern "C"

// Each call has both names of the profiling interface; a program may have the first one itself.
#define RANKWISE_ALIAS(NAME) \
  extern "C" decltype(PMPI_##NAME) MPI_##NAME __attribute__((weak, alias("PMPI_" #NAME)));
RANKWISE_ALIAS(Send)
RANKWISE_ALIAS(Ssend)
RANKWISE_ALIAS(Isend)
RANKWISE_ALIAS(Issend)
RANKWISE_ALIAS(Irecv)
RANKWISE_ALIAS(Recv)
RANKWISE_ALIAS(Sendrecv)
RANKWISE_ALIAS(Sendrecv_replace)
RANKWISE_ALIAS(Wait)
RANKWISE_ALIAS(Waitall)
RANKWISE_ALIAS(Waitany)
RANKWISE_ALIAS(Waitsome)
RANKWISE_ALIAS(Test)
RANKWISE_ALIAS(Testall)
RANKWISE_ALIAS(Testany)
RANKWISE_ALIAS(Testsome)
RANKWISE_ALIAS(Probe)
RANKWISE_ALIAS(Iprobe)
RANKWISE_ALIAS(Mprobe)
RANKWISE_ALIAS(Improbe)
RANKWISE_ALIAS(Mrecv)
RANKWISE_ALIAS(Get_count)

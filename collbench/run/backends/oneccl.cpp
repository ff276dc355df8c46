// What collbench calls of oneCCL, whose C++ interface ctypes cannot call: functions of C's kind.
// Each returns 0, or 1 where oneCCL threw an exception, whose text ccl_error() returns then: no
// exception leaves a function. A call is resolved once (ccl_prepare) and made often (ccl_run).

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "oneapi/ccl.hpp"

// Errors since ccl_error() was called last: Python looks at it after each sample.
extern "C" int ccl_errors;
int ccl_errors = 0;

namespace {

std::string text;  // of the last error

void keep_error(const char* what) {
    text = what;
    ++ccl_errors;
}

template <class Action>
int guard(Action action) {
    try {
        action();
        return 0;
    } catch (const std::exception& error) {
        keep_error(error.what());
    } catch (...) {
        keep_error("an exception of no known type");
    }
    return 1;
}

enum Kind {  // as _oneccl.py numbers them
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    all_to_allv,
    broadcast,
    reduce,
    sendrecv,
    barrier,
};

struct Group {
    std::shared_ptr<ccl::kvs> kvs;
    ccl::communicator comm;
};

}  // namespace

extern "C" {

// One prepared call; the first members are what Python fills in (_oneccl.py, Arguments).
struct Arguments {
    int kind;
    int dtype;
    int op;
    int root;
    int next;
    int previous;
    size_t count;
    void* send;
    void* recv;
    const size_t* counts_to;    // of all_to_allv, one for each rank
    const size_t* counts_from;
};

}  // extern "C"

namespace {

struct Call {
    Arguments with;
    const ccl::communicator& comm;
    std::vector<size_t> counts_to, counts_from;
    ccl::event done, sent;

    Call(const Arguments& arguments, const Group& group)
            : with(arguments), comm(group.comm) {
        if (with.kind == all_to_allv) {
            counts_to.assign(with.counts_to, with.counts_to + comm.size());
            counts_from.assign(with.counts_from, with.counts_from + comm.size());
        }
    }

    // Not between group_start() and group_end(): there wait() does nothing but print a warning.
    void start_message_pair() {
        const auto dtype = static_cast<ccl::datatype>(with.dtype);
        sent = ccl::send(with.send, with.count, dtype, with.next, comm);
        done = ccl::recv(with.recv, with.count, dtype, with.previous, comm);
    }

    ccl::event start_collective() {
        const auto dtype = static_cast<ccl::datatype>(with.dtype);
        const auto op = static_cast<ccl::reduction>(with.op);
        switch (with.kind) {
            case all_reduce:
                return ccl::allreduce(with.send, with.recv, with.count, dtype, op, comm);
            case all_gather:
                return ccl::allgather(with.send, with.recv, with.count, dtype, comm);
            case reduce_scatter:
                return ccl::reduce_scatter(with.send, with.recv, with.count, dtype, op, comm);
            case all_to_all:
                return ccl::alltoall(with.send, with.recv, with.count, dtype, comm);
            case all_to_allv:
                return ccl::alltoallv(
                    with.send, counts_to, with.recv, counts_from, dtype, comm);
            case broadcast:
                return ccl::broadcast(
                    with.send, with.recv, with.count, dtype, with.root, comm);
            case reduce:
                return ccl::reduce(
                    with.send, with.recv, with.count, dtype, op, with.root, comm);
            default:
                return ccl::barrier(comm);
        }
    }

    void start() {
        if (with.kind == sendrecv)
            start_message_pair();
        else
            done = start_collective();
    }

    void wait() {
        if (with.kind == sendrecv)
            sent.wait();
        done.wait();
    }
};

}  // namespace

extern "C" {

// The text of the last error, and that it is known now.
const char* ccl_error() {
    ccl_errors = 0;
    return text.c_str();
}

// The library's version in ``room`` bytes, "2022.2.0".
int ccl_version(char* version, size_t room) {
    return guard([&] {
        const auto known = ccl::get_library_version();
        std::snprintf(version, room, "%u.%u.%u", known.major, known.minor, known.update);
    });
}

size_t ccl_address_size() {
    return ccl::kvs::address_max_size;
}

// Opens the place where a group meets, and writes down its address.
int ccl_meet(char* address, void** kvs) {
    return guard([&] {
        auto place = ccl::create_main_kvs();
        const auto known = place->get_address();
        std::memcpy(address, known.data(), known.size());
        *kvs = new std::shared_ptr<ccl::kvs>(place);
    });
}

// Comes to the place at that address.
int ccl_come(const char* address, void** kvs) {
    return guard([&] {
        ccl::kvs::address_type known;
        std::memcpy(known.data(), address, known.size());
        *kvs = new std::shared_ptr<ccl::kvs>(ccl::create_kvs(known));
    });
}

// Forms the group of all that have come; ``kvs`` is the group's from then on.
int ccl_join(int size, int rank, void* kvs, void** group) {
    std::unique_ptr<std::shared_ptr<ccl::kvs>> place(static_cast<std::shared_ptr<ccl::kvs>*>(kvs));
    return guard([&] {
        auto comm = ccl::create_communicator(size, rank, *place);
        if (comm.size() != size || comm.rank() != rank)
            throw ccl::exception("the communicator has another size or rank than asked for");
        *group = new Group{*place, std::move(comm)};
    });
}

int ccl_leave(void* group) {
    return guard([&] { delete static_cast<Group*>(group); });
}

int ccl_prepare(const Arguments* arguments, void* group, void** call) {
    return guard([&] { *call = new Call(*arguments, *static_cast<Group*>(group)); });
}

// Makes a call and waits until its result is there.
int ccl_run(void* call) {
    return guard([&] {
        static_cast<Call*>(call)->start();
        static_cast<Call*>(call)->wait();
    });
}

int ccl_start(void* call) {
    return guard([&] { static_cast<Call*>(call)->start(); });
}

int ccl_wait(void* call) {
    return guard([&] { static_cast<Call*>(call)->wait(); });
}

int ccl_release(void* call) {
    return guard([&] { delete static_cast<Call*>(call); });
}

}  // extern "C"

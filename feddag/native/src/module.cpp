// The Python side: arguments are read and checked first, then the work is done without the interpreter lock.
#include <atomic>
#include <thread>

#include "arguments.hpp"
#include "peak.hpp"

namespace feddag {

template <class T> py::dict written_weights(Network<T>& net) {
    py::dict weights;
    net.for_each_part([&](Sequential<T>& part) {
        part.for_each_param([&](Param<T>& p) {
            py::array_t<T> array(p.shape);
            p.write(array.mutable_data());
            weights[p.name.c_str()] = array;
        });
    });
    return weights;
}

// Each client belongs to one thread from beginning to end, so the number of threads changes nothing but the time.
template <class T> py::list train_clients(const py::list& jobs, int threads) {
    std::vector<std::unique_ptr<Client<T>>> clients;
    for (py::handle job : jobs) clients.push_back(read_training<T>(py::reinterpret_borrow<py::dict>(job)));
    {
        py::gil_scoped_release unlocked;
        std::vector<std::size_t> longest_first(clients.size());
        std::iota(longest_first.begin(), longest_first.end(), 0);
        std::stable_sort(longest_first.begin(), longest_first.end(), [&](std::size_t a, std::size_t b) {
            return clients[a]->schedule.steps * clients[a]->schedule.largest >
                   clients[b]->schedule.steps * clients[b]->schedule.largest;
        });
        std::atomic<std::size_t> next{0};
        const auto work = [&] {
            for (std::size_t i; (i = next++) < clients.size();) {
                Client<T>& c = *clients[longest_first[i]];
                try {
                    train(*c.net, c.data, c.schedule, c.sgd, c.key, c.losses.data());
                } catch (...) {
                    c.failure = std::current_exception();
                }
            }
        };
        std::vector<std::thread> helpers;
        for (int t = 1; t < std::min(threads, int(clients.size())); t++) helpers.emplace_back(work);
        work();
        for (auto& helper : helpers) helper.join();
    }
    py::list results;
    for (auto& client : clients) {
        if (client->failure) std::rethrow_exception(client->failure);
        results.append(py::make_tuple(written_weights(*client->net),
                                      py::array_t<double>(client->losses.size(), client->losses.data())));
    }
    return results;
}

constexpr int kScoringBatch = 24;

// By group of samples, with each of several heads in the place of the network's own: how many samples it gets right, of
// how many, and the sum of their losses.
template <class T> py::tuple evaluate(const py::dict& job) {
    Client<T> client;
    read_samples(client, job);
    build_network(client, job, kScoringBatch);
    read_labels(client, job);
    auto heads = read_heads(*client.net, job);
    const Groups groups = read_groups(client, job);
    const int classes = client.net->classes();
    const std::int64_t cells = std::int64_t(heads.size()) * groups.count;
    py::array_t<std::int64_t> correct({std::int64_t(heads.size()), groups.count}), count(groups.count);
    py::array_t<double> loss({std::int64_t(heads.size()), groups.count});
    std::int64_t *correct_of = correct.mutable_data(), *count_of = count.mutable_data();
    double* loss_of = loss.mutable_data();
    std::fill_n(correct_of, cells, 0), std::fill_n(count_of, groups.count, 0), std::fill_n(loss_of, cells, 0.0);
    {
        py::gil_scoped_release unlocked;
        for (std::int64_t i = 0; i < client.data.count; i++) count_of[groups.of[i]]++;
        encode_all(*client.net, client.data, [&](std::int64_t first, const Pass& pass) {
            for (std::size_t h = 0; h < heads.size(); h++) {
                Sequential<T>& head = *client.net->head;
                head.exchange(heads[h]);
                score(head, first, pass, [&](std::int64_t i, const T* scores) {
                    const std::int64_t label = client.data.y[i], cell = h * groups.count + groups.of[i];
                    correct_of[cell] += std::max_element(scores, scores + classes) - scores == label;
                    loss_of[cell] += cross_entropy<T>(scores, classes, label, T(1), nullptr);
                });
                head.exchange(heads[h]);
            }
        });
    }
    return py::make_tuple(correct, count, loss);
}

// The class scores of every sample and, where labels are given, its cross-entropy.
template <class T> py::tuple scores(const py::dict& job) {
    Client<T> client;
    read_samples(client, job);
    build_network(client, job, kScoringBatch);
    const bool labelled = job.contains("y");
    if (labelled) read_labels(client, job);
    const int classes = client.net->classes();
    py::array_t<T> all({client.data.count, std::int64_t(classes)});
    py::array_t<double> losses(labelled ? client.data.count : 0);
    T* out = all.mutable_data();
    double* loss = losses.mutable_data();
    {
        py::gil_scoped_release unlocked;
        encode_all(*client.net, client.data, [&](std::int64_t first, const Pass& pass) {
            score(*client.net->head, first, pass, [&](std::int64_t i, const T* row) {
                std::copy_n(row, classes, out + i * classes);
                if (labelled) loss[i] = cross_entropy<T>(row, classes, client.data.y[i], T(1), nullptr);
            });
        });
    }
    return py::make_tuple(all, losses);
}

py::array_t<std::uint16_t> draws(Key key, std::uint64_t layer, std::uint64_t step, std::size_t count) {
    std::vector<std::uint16_t> all(count + 16);
    dropout_draws(key, layer, step, count, all.data());
    return py::array_t<std::uint16_t>(count, all.data());
}

// Whether the network's sizes fit together for samples like these; gives the way each layer of the encoder is computed.
std::vector<std::string> check(py::handle network, const py::array& x) {
    py::dict job;
    job["network"] = network, job["x"] = x;
    Client<float> client;
    read_samples(client, job);
    build_network(client, job, 1);
    return client.net->encoders[0]->ways();
}

// Which of the builds this processor can run, best first.
std::vector<std::string> runnable() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        names.push_back("avx512");
    if (avx2) names.push_back("avx2");
#endif
    names.push_back("portable");
    return names;
}

}  // namespace feddag

PYBIND11_MODULE(FEDDAG_MODULE, m) {
    m.doc() = "Local training of federated clients; use it through feddag.native.";
    m.def("runnable", feddag::runnable);
    m.def("check", feddag::check);
    m.def("dropout_draws", feddag::draws);
    m.def("fma_peak", feddag::fma_peak, pybind11::call_guard<pybind11::gil_scoped_release>());
    m.def("train_float32", feddag::train_clients<float>);
    m.def("train_float64", feddag::train_clients<double>);
    m.def("evaluate_float32", feddag::evaluate<float>);
    m.def("evaluate_float64", feddag::evaluate<double>);
    m.def("scores_float32", feddag::scores<float>);
    m.def("scores_float64", feddag::scores<double>);
}

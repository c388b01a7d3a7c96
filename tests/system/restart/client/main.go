// Makes the calls of a kubelet and of crictl on one CRI socket while criswitch restarts, through the client library
// that both use. The client ends when its standard input ends. It writes a line for each call that failed or whose
// reply was incomplete, and the number of calls at the end. The exit code is 1 if it wrote a line for a call.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
)

const (
	// The default of the kubelet's runtimeRequestTimeout.
	callTimeout = 2 * time.Minute
	// The pause between two calls of one worker: a steady load below the limits of the machine.
	pause = 2 * time.Millisecond
)

// The ids that every list must have. A list may have more.
var pods, containers []string

var (
	calls, failures atomic.Int64
	output          sync.Mutex
)

// A worker's round of calls.
type round func(ctx context.Context) error

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: client SOCKET POD,... CONTAINER,... <pipe")
		os.Exit(64)
	}
	endpoint := "unix://" + os.Args[1]
	pods, containers = strings.Split(os.Args[2], ","), strings.Split(os.Args[3], ",")
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	ctx := context.Background()
	runtime, err := remote.NewRemoteRuntimeService(ctx, endpoint, callTimeout, nil, false)
	check(err)
	streaming, err := remote.NewRemoteRuntimeService(ctx, endpoint, callTimeout, nil, true)
	check(err)
	images, err := remote.NewRemoteImageService(ctx, endpoint, callTimeout, nil, false)
	check(err)
	go events(ctx, runtime)
	work(ctx, map[string]round{
		"relist":         func(ctx context.Context) error { return relist(ctx, runtime) },
		"streamed lists": func(ctx context.Context) error { return relist(ctx, streaming) },
		"statuses":       func(ctx context.Context) error { return statuses(ctx, runtime) },
		"node":           func(ctx context.Context) error { return node(ctx, runtime) },
		"images":         func(ctx context.Context) error { return imagesOf(ctx, images) },
		"exec":           func(ctx context.Context) error { return exec(ctx, runtime) },
		"churn":          func(ctx context.Context) error { return churn(ctx, runtime) },
		"command":        func(ctx context.Context) error { return command(ctx, endpoint) },
	})
	fmt.Printf("calls %d\n", calls.Load())
	if failures.Load() > 0 {
		os.Exit(1)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

// Runs rounds of every worker until the standard input ends. Completes the last rounds.
func work(ctx context.Context, rounds map[string]round) {
	ending := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ending)
	}()
	var workers sync.WaitGroup
	for name, round := range rounds {
		workers.Go(func() {
			for {
				select {
				case <-ending:
					return
				case <-time.After(pause):
				}
				if err := round(ctx); err != nil {
					fail(name, err)
				}
			}
		})
	}
	workers.Wait()
}

func fail(who string, err error) {
	failures.Add(1)
	output.Lock()
	defer output.Unlock()
	fmt.Printf("FAILED %s: %v\n", who, err)
}

func did[T any](name string, value T, err error) (T, error) {
	calls.Add(1)
	if err != nil {
		return value, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

func done(name string, err error) error {
	_, err = did(name, struct{}{}, err)
	return err
}

func relist(ctx context.Context, runtime internalapi.RuntimeService) error {
	listed, err := runtime.ListPodSandbox(ctx, nil)
	if listed, err = did("ListPodSandbox", listed, err); err != nil {
		return err
	}
	var ids []string
	for _, pod := range listed {
		ids = append(ids, pod.Id)
	}
	if err := whole("pods", ids, pods); err != nil {
		return err
	}
	inside, err := runtime.ListContainers(ctx, &cri.ContainerFilter{})
	if inside, err = did("ListContainers", inside, err); err != nil {
		return err
	}
	ids = nil
	for _, container := range inside {
		ids = append(ids, container.Id)
	}
	return whole("containers", ids, containers)
}

// Checks that a list has every wanted id, and no id twice.
func whole(what string, listed, wanted []string) error {
	for _, id := range wanted {
		if !slices.Contains(listed, id) {
			return fmt.Errorf("a list of %d %s lacks %s", len(listed), what, id)
		}
	}
	slices.Sort(listed)
	if len(slices.Compact(slices.Clone(listed))) != len(listed) {
		return fmt.Errorf("a list of %s has one twice", what)
	}
	return nil
}

func statuses(ctx context.Context, runtime internalapi.RuntimeService) error {
	for _, id := range pods {
		if _, err := runtime.PodSandboxStatus(ctx, id, false); done("PodSandboxStatus", err) != nil {
			return err
		}
	}
	for _, id := range containers {
		if _, err := runtime.ContainerStatus(ctx, id, false); done("ContainerStatus", err) != nil {
			return err
		}
	}
	return nil
}

func node(ctx context.Context, runtime internalapi.RuntimeService) error {
	version, err := runtime.Version(ctx, "")
	if _, err = did("Version", version, err); err != nil {
		return err
	}
	state, err := runtime.Status(ctx, false)
	if state, err = did("Status", state, err); err != nil {
		return err
	}
	for _, condition := range state.Status.Conditions {
		if !condition.Status {
			return fmt.Errorf("Status: %s is false: %s", condition.Type, condition.Message)
		}
	}
	return nil
}

func imagesOf(ctx context.Context, images internalapi.ImageManagerService) error {
	listed, err := images.ListImages(ctx, nil)
	if listed, err = did("ListImages", listed, err); err != nil {
		return err
	}
	if len(listed) == 0 {
		return errors.New("a list of images is empty")
	}
	_, err = images.ImageStatus(ctx, &cri.ImageSpec{Image: listed[0].Id}, false)
	return done("ImageStatus", err)
}

// The runtime sometimes holds this call, so that the call is in flight during the shutdown.
func exec(ctx context.Context, runtime internalapi.RuntimeService) error {
	_, _, err := runtime.ExecSync(ctx, containers[0], []string{"true"}, callTimeout)
	return done("ExecSync", err)
}

var attempt atomic.Uint32

func churn(ctx context.Context, runtime internalapi.RuntimeService) error {
	name := fmt.Sprintf("churn-%d", attempt.Add(1))
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "go", Uid: name},
	}
	id, err := runtime.RunPodSandbox(ctx, config, "")
	if id, err = did("RunPodSandbox", id, err); err != nil {
		return err
	}
	if err := done("StopPodSandbox", runtime.StopPodSandbox(ctx, id)); err != nil {
		return err
	}
	return done("RemovePodSandbox", runtime.RemovePodSandbox(ctx, id))
}

// Opens a connection for each command, as crictl does.
func command(ctx context.Context, endpoint string) error {
	runtime, err := remote.NewRemoteRuntimeService(ctx, endpoint, callTimeout, nil, false)
	if runtime, err = did("a new connection", runtime, err); err != nil {
		return err
	}
	defer runtime.Close(ctx)
	return relist(ctx, runtime)
}

// Listens for events again and again, as the kubelet does. A stream may end only with the status of a shutdown.
func events(ctx context.Context, runtime internalapi.RuntimeService) {
	for {
		told := make(chan *cri.ContainerEventResponse, 1000)
		go func() {
			for range told {
			}
		}()
		err := runtime.GetContainerEvents(ctx, told, nil)
		close(told)
		end := status.Convert(err)
		if end.Code() != codes.Unavailable || !strings.Contains(end.Message(), "criswitch is shutting down") {
			fail("events", err)
		}
	}
}
